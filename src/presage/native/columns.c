/* Sums over operators and the feature matrix: presage.features.columns in C.

Sums are added in the order of the functions in Python, so that all numbers are the same bits. What
numpy computes by an order or a function of its own, pairwise sums and logarithms, stays there. */

#include "hot_path.h"

#define LEAST_S 1e-9       /* as presage.features.columns.row_values */
#define LEAST_STEP_S 1e-12
#define RATIOS 3
#define SUMS 6
#define RATES 3
#define SCALARS 4

static Py_ssize_t intps(const Py_buffer *buffer) { return buffer->len / sizeof(Py_ssize_t); }

static PyObject *released(Py_buffer *buffers, int count, const char *wrong)
{
    for (int i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* sum_operators(out, op_counts, op_classes, op_values, lane_values, lane_places, sums)

out (jobs, width) gets the sums of the first `sums` lanes and the maxima of the others. Lane i adds
row lane_values[i] of op_values (values, ops) at the place lane_places[i, class]. */
PyObject *sum_operators(PyObject *module, PyObject *args)
{
    Py_buffer b[6];
    Py_ssize_t sums;
    if (!PyArg_ParseTuple(args, "w*y*y*y*y*y*n", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &sums))
        return NULL;
    double *out = b[0].buf;
    const Py_ssize_t *op_counts = b[1].buf, *op_classes = b[2].buf, *lane_values = b[4].buf,
                     *lane_places = b[5].buf;
    Py_ssize_t jobs = intps(&b[1]), ops = intps(&b[2]), lanes = intps(&b[4]);
    Py_ssize_t width = jobs ? intps(&b[0]) / jobs : 0, classes = lanes ? intps(&b[5]) / lanes : 0;
    for (Py_ssize_t i = 0; i < jobs * width; i++) out[i] = 0;
    for (Py_ssize_t lane = 0; lane < lanes; lane++) {
        const Py_ssize_t *places = lane_places + lane * classes;
        const double *value = (const double *)b[3].buf + lane_values[lane] * ops;
        const Py_ssize_t *op_class = op_classes;
        double *row = out;
        for (Py_ssize_t job = 0; job < jobs; job++, row += width)
            for (Py_ssize_t i = 0; i < op_counts[job]; i++, value++) {
                double *place = row + places[*op_class++];
                if (lane < sums)
                    *place += *value;
                else if (*value > *place)
                    *place = *value;
            }
    }
    return released(b, 6, NULL);
}

/* visit_operators(sums, by_place, rates, job, op_starts, op_counts, op_classes, op_values, tables)

sums (6, visits) gets bound_s, the ratio of compute and memory time, compute_s, memory_s,
compute_bound_s, and bound_s again; by_place (rows, places) the bound_s of each bucket and misfit.
rates (rows, 3) are those of the rows' shares. tables (4, classes) are a class's rate of arithmetic,
its first bucket, whether its bucket depends on the ratio, and the place of its misfit. The last
argument has the limits of ratios. */
PyObject *visit_operators(PyObject *module, PyObject *args)
{
    Py_buffer b[10];
    if (!PyArg_ParseTuple(args, "w*w*y*y*y*y*y*y*y*y*", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5],
                          &b[6], &b[7], &b[8], &b[9]))
        return NULL;
    Py_ssize_t rows = intps(&b[3]), ops = intps(&b[6]), visits = intps(&b[0]) / SUMS;
    Py_ssize_t places = rows ? intps(&b[1]) / rows : 0, classes = intps(&b[8]) / 4;
    const Py_ssize_t *job = b[3].buf, *starts = b[4].buf, *counts = b[5].buf;
    const double *limits = b[9].buf;
    double *sums = b[0].buf, *by_place = b[1].buf;
    for (Py_ssize_t i = 0; i < rows * places; i++) by_place[i] = 0;
    Py_ssize_t visit = 0;
    for (Py_ssize_t row = 0; row < rows; row++, by_place += places) {
        const Py_ssize_t *op_class = (const Py_ssize_t *)b[6].buf + starts[job[row]];
        const double *flops = (const double *)b[7].buf + starts[job[row]];
        const double *bytes_moved = flops + ops, *rates = (const double *)b[2].buf + row * RATES;
        for (Py_ssize_t i = 0; i < counts[job[row]]; i++, visit++) {
            const Py_ssize_t *table = (const Py_ssize_t *)b[8].buf + op_class[i];
            double compute_s = flops[i] / rates[table[0]], memory_s = bytes_moved[i] / rates[2];
            double bound_s = compute_s >= memory_s || compute_s != compute_s ? compute_s : memory_s;
            double ratio = (compute_s + LEAST_S) / (memory_s + LEAST_S);
            Py_ssize_t step = 0; /* as np.searchsorted, for which NaN is the largest number */
            for (int limit = 0; limit < RATIOS; limit++) step += !(ratio < limits[limit]);
            by_place[table[classes] + step * table[2 * classes]] += bound_s;
            by_place[table[3 * classes]] += bound_s;
            sums[visit] = sums[5 * visits + visit] = bound_s;
            sums[visits + visit] = ratio;
            sums[2 * visits + visit] = compute_s;
            sums[3 * visits + visit] = memory_s;
            sums[4 * visits + visit] = compute_s * (compute_s > memory_s);
        }
    }
    return released(b, 10, NULL);
}

/* divide_columns(out, job, device, by_job, by_device, rates, share, sums, by_place, columns,
                  denominators, limits, of_job, of_device, op_count, own_bytes, overhead, context)

out (rows, columns) gets the quotient of two values of its row for each column. The values are
by_job[job], by_device[device], rates, share, sums, overhead, roofline and memory of the row, and
by_place. The last arguments are the widths of by_job and by_device, and positions in them. */
PyObject *divide_columns(PyObject *module, PyObject *args)
{
    Py_buffer b[12];
    Py_ssize_t of_job, of_device, op_count, own_bytes, overhead, context;
    if (!PyArg_ParseTuple(args, "w*y*y*y*y*y*y*y*y*y*y*y*nnnnnn", &b[0], &b[1], &b[2], &b[3], &b[4],
                          &b[5], &b[6], &b[7], &b[8], &b[9], &b[10], &b[11], &of_job, &of_device,
                          &op_count, &own_bytes, &overhead, &context))
        return NULL;
    const Py_ssize_t *job = b[1].buf, *device = b[2].buf, *upper = b[9].buf, *lower = b[10].buf;
    const double *share = b[6].buf, *sums = b[7].buf, *least = b[11].buf;
    Py_ssize_t rows = intps(&b[1]), columns = intps(&b[9]);
    Py_ssize_t places = rows ? intps(&b[8]) / rows : 0;
    Py_ssize_t size = of_job + of_device + RATES + 1 + SUMS + SCALARS + places;
    double *values = PyMem_Malloc(size * sizeof(double)), *out = b[0].buf;
    if (!values) {
        released(b, 12, NULL);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t row = 0; row < rows; row++, out += columns) {
        const double *by_job = (const double *)b[3].buf + job[row] * of_job;
        const double *by_device = (const double *)b[4].buf + device[row] * of_device;
        const double *rates = (const double *)b[5].buf + row * RATES;
        const double *by_place = (const double *)b[8].buf + row * places;
        double *next = values;
        for (Py_ssize_t i = 0; i < of_job; i++) *next++ = by_job[i];
        for (Py_ssize_t i = 0; i < of_device; i++) *next++ = by_device[i];
        for (Py_ssize_t i = 0; i < RATES; i++) *next++ = rates[i];
        *next++ = share[row];
        for (Py_ssize_t i = 0; i < SUMS; i++) *next++ = sums[i * rows + row];
        double overhead_s = by_job[op_count] * by_device[overhead];
        double step_s = sums[row] + overhead_s;
        if (step_s < LEAST_STEP_S) step_s = LEAST_STEP_S;
        *next++ = overhead_s;
        *next++ = step_s;
        *next++ = step_s + LEAST_STEP_S;
        *next++ = by_device[context] + by_job[own_bytes];
        for (Py_ssize_t i = 0; i < places; i++) *next++ = by_place[i];
        for (Py_ssize_t i = 0; i < columns; i++) {
            double denominator = values[lower[i]];
            if (denominator < least[i]) denominator = least[i];
            out[i] = values[upper[i]] / denominator;
        }
    }
    PyMem_Free(values);
    return released(b, 12, NULL);
}
