/* The module presage.native.hot_path: loops over operators that numpy and Python take longer for.

Each function has an equal in Python, which tests compare it with. Arrays are C-contiguous, of
float64 and of intp. */

#include "hot_path.h"

static PyMethodDef methods[] = {
    {"operator_reader", operator_reader, METH_VARARGS, "Return what the readers need to know."},
    {"read_operators", read_operators, METH_VARARGS, "Read statistics of operators from objects."},
    {"read_jobs", read_jobs, METH_VARARGS, "Read the jobs of a serialized request."},
    {"sum_operators", sum_operators, METH_VARARGS, "Add up the operators of each job."},
    {"visit_operators", visit_operators, METH_VARARGS, "Compute times of each row's operators."},
    {"divide_columns", divide_columns, METH_VARARGS, "Write the feature matrix."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "hot_path", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_hot_path(void) { return PyModuleDef_Init(&definition); }
