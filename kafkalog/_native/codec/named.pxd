# Named tuples made natively: of the right class, without the calls that its own __new__ would make.
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject*, Py_ssize_t)


cdef inline object made(kind, Py_ssize_t length):
    """One of the class `kind`; each of its `length` places is to be set once."""
    return (<PyTypeObject*>kind).tp_alloc(<PyTypeObject*>kind, length)


cdef inline void set_item(object named, Py_ssize_t at, object item):
    Py_INCREF(item)
    PyTuple_SET_ITEM(named, at, item)
