/* Functions of presage.native.hot_path, one file each; see the docstrings in hot_path.c. */

#ifndef PRESAGE_HOT_PATH_H
#define PRESAGE_HOT_PATH_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stdint.h>

PyObject *operator_reader(PyObject *module, PyObject *args);
PyObject *read_operators(PyObject *module, PyObject *args);
PyObject *read_jobs(PyObject *module, PyObject *args);
PyObject *sum_operators(PyObject *module, PyObject *args);
PyObject *visit_operators(PyObject *module, PyObject *args);
PyObject *divide_columns(PyObject *module, PyObject *args);

#endif
