# Creates named tuples natively: of the right class, without the calls that the class's __new__ would make.
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject*, Py_ssize_t)


cdef inline object made(kind, Py_ssize_t length):
    """Returns a new object of the class `kind`; the caller must set each of its `length` items once."""
    return (<PyTypeObject*>kind).tp_alloc(<PyTypeObject*>kind, length)


cdef inline void set_item(object named, Py_ssize_t at, object item):
    Py_INCREF(item)
    PyTuple_SET_ITEM(named, at, item)
