# Base classes of native context managers.
cdef class Single:
    pass


cdef class Closing(Single):
    pass
