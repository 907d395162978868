"""The requests and responses about security: SASL, ACLs, delegation tokens and SCRAM credentials.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
17 SaslHandshakeRequest 0-1
  mechanism string
17 SaslHandshakeResponse 0-1
  errorCode int16, mechanisms [string]
29 DescribeAclsRequest 1-3 flexible 2+
  resourceTypeFilter int8, resourceNameFilter string?, patternTypeFilter int8 =3
  principalFilter string?, hostFilter string?, operation int8, permissionType int8
29 DescribeAclsResponse 1-3 flexible 2+
  throttleTimeMs int32, errorCode int16, errorMessage string?
  resources [DescribeAclsResource]
    resourceType int8, resourceName string, patternType int8 =3
    acls [AclDescription]
      principal string, host string, operation int8, permissionType int8
30 CreateAclsRequest 1-3 flexible 2+
  creations [AclCreation]
    resourceType int8, resourceName string, resourcePatternType int8 =3, principal string, host string
    operation int8, permissionType int8
30 CreateAclsResponse 1-3 flexible 2+
  throttleTimeMs int32
  results [AclCreationResult]
    errorCode int16, errorMessage string?
31 DeleteAclsRequest 1-3 flexible 2+
  filters [DeleteAclsFilter]
    resourceTypeFilter int8, resourceNameFilter string?, patternTypeFilter int8 =3
    principalFilter string?, hostFilter string?, operation int8, permissionType int8
31 DeleteAclsResponse 1-3 flexible 2+
  throttleTimeMs int32
  filterResults [DeleteAclsFilterResult]
    errorCode int16, errorMessage string?
    matchingAcls [DeleteAclsMatchingAcl]
      errorCode int16, errorMessage string?, resourceType int8, resourceName string
      patternType int8 =3, principal string, host string, operation int8, permissionType int8
36 SaslAuthenticateRequest 0-2 flexible 2+
  authBytes bytes
36 SaslAuthenticateResponse 0-2 flexible 2+
  errorCode int16, errorMessage string?, authBytes bytes, sessionLifetimeMs int64 1+
38 CreateDelegationTokenRequest 1-3 flexible 2+
  ownerPrincipalType string?! 3+, ownerPrincipalName string?! 3+
  renewers [CreatableRenewers]
    principalType string, principalName string
  maxLifetimeMs int64
38 CreateDelegationTokenResponse 1-3 flexible 2+
  errorCode int16, principalType string, principalName string, tokenRequesterPrincipalType string! 3+
  tokenRequesterPrincipalName string! 3+, issueTimestampMs int64, expiryTimestampMs int64
  maxTimestampMs int64, tokenId string, hmac bytes, throttleTimeMs int32
39 RenewDelegationTokenRequest 1-2 flexible 2+
  hmac bytes, renewPeriodMs int64
39 RenewDelegationTokenResponse 1-2 flexible 2+
  errorCode int16, expiryTimestampMs int64, throttleTimeMs int32
40 ExpireDelegationTokenRequest 1-2 flexible 2+
  hmac bytes, expiryTimePeriodMs int64
40 ExpireDelegationTokenResponse 1-2 flexible 2+
  errorCode int16, expiryTimestampMs int64, throttleTimeMs int32
41 DescribeDelegationTokenRequest 1-3 flexible 2+
  owners [DescribeDelegationTokenOwner]?
    principalType string, principalName string
41 DescribeDelegationTokenResponse 1-3 flexible 2+
  errorCode int16
  tokens [DescribedDelegationToken]
    principalType string, principalName string, tokenRequesterPrincipalType string! 3+
    tokenRequesterPrincipalName string! 3+, issueTimestamp int64, expiryTimestamp int64
    maxTimestamp int64, tokenId string, hmac bytes
    renewers [DescribedDelegationTokenRenewer]
      principalType string, principalName string
  throttleTimeMs int32
50 DescribeUserScramCredentialsRequest 0 flexible 0+
  users [UserName]?
    name string
50 DescribeUserScramCredentialsResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string?
  results [DescribeUserScramCredentialsResult]
    user string, errorCode int16, errorMessage string?
    credentialInfos [CredentialInfo]
      mechanism int8, iterations int32
51 AlterUserScramCredentialsRequest 0 flexible 0+
  deletions [ScramCredentialDeletion]
    name string, mechanism int8
  upsertions [ScramCredentialUpsertion]
    name string, mechanism int8, iterations int32, salt bytes, saltedPassword bytes
51 AlterUserScramCredentialsResponse 0 flexible 0+
  throttleTimeMs int32
  results [AlterUserScramCredentialsResult]
    user string, errorCode int16, errorMessage string?
"""
