"""The two checksums, a byte at a time: the reference for the native ones."""

CRC32C_POLYNOMIAL = 0x82F63B78
CRC32_POLYNOMIAL = 0xEDB88320


def _table(polynomial: int) -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        table.append(value)
    return table


_TABLES = {polynomial: _table(polynomial) for polynomial in (CRC32C_POLYNOMIAL, CRC32_POLYNOMIAL)}


def crc(data: bytes, value: int = 0, *, polynomial: int = CRC32C_POLYNOMIAL) -> int:
    """The checksum of `data`, going on from `value`."""
    table = _TABLES[polynomial]
    value ^= 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def crc32c(data: bytes, value: int = 0) -> int:
    return crc(data, value)


def crc32(data: bytes, value: int = 0) -> int:
    return crc(data, value, polynomial=CRC32_POLYNOMIAL)
