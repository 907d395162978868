# The bases of what a `with` block leaves, for those that are native themselves.
cdef class Single:
    pass


cdef class Closing(Single):
    pass
