/* Readers of jobs and of their operators: presage.features.job.job_table and
presage.serving.codec.wire_jobs in C.

Only what is usual and valid is read. For all else (another field, a wrong type, a text that is not
ASCII, a value out of bounds) the readers return None, and Python reads it again: so only Python
has errors. */

#include "hot_path.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 2048 /* of the hash table: a power of two */
#define MAX_NAMES 8
#define OP_VALUES 5 /* flops, bytes_moved, count, input_elements_max, output_elements */
#define COMPONENTS 6
#define JOB_SCALARS 20
#define MAX_BYTES (INT64_C(1) << 59) /* five such sizes add up to less than 2**63 */

typedef struct {
    const char *at;
    Py_ssize_t size;
} Text;

typedef struct {
    PyObject *names; /* keeps the texts alive: the tuples of OP_CLASSES, PRECISIONS, formats */
    Text classes[SLOTS][3];
    Py_ssize_t codes[SLOTS]; /* -1 for a free slot */
    Text precisions[MAX_NAMES], formats[MAX_NAMES];
    Py_ssize_t n_precisions, n_formats;
    double sample_s, byte_s;
    PyObject *attributes[3 + OP_VALUES];
} Reader;

static const char *READER = "presage.native.reader";
static const char *ATTRIBUTES[] = {"kind", "phase", "shape", "flops", "bytes_moved", "count",
                                   "input_elements_max", "output_elements"};

static int same(Text a, Text b) { return a.size == b.size && !memcmp(a.at, b.at, a.size); }

static int text_of(PyObject *object, Text *out)
{
    out->at = PyUnicode_AsUTF8AndSize(object, &out->size);
    return out->at != NULL;
}

/* Return the slot of a class, or the free one where it belongs. */
static unsigned slot_of(const Reader *reader, const Text class[3])
{
    uint32_t hash = 2166136261u;
    for (int part = 0; part < 3; part++) {
        for (Py_ssize_t i = 0; i < class[part].size; i++)
            hash = (hash ^ (unsigned char)class[part].at[i]) * 16777619u;
        hash = (hash ^ 0xffu) * 16777619u;
    }
    unsigned slot = (hash ^ hash >> 15) % SLOTS;
    while (reader->codes[slot] >= 0 &&
           !(same(reader->classes[slot][0], class[0]) && same(reader->classes[slot][1], class[1]) &&
             same(reader->classes[slot][2], class[2])))
        slot = (slot + 1) % SLOTS;
    return slot;
}

static Py_ssize_t find(const Text *names, Py_ssize_t count, Text text)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (same(names[i], text)) return i;
    return -1;
}

static void free_reader(PyObject *capsule)
{
    Reader *reader = PyCapsule_GetPointer(capsule, READER);
    Py_XDECREF(reader->names);
    for (int i = 0; i < 3 + OP_VALUES; i++) Py_XDECREF(reader->attributes[i]);
    free(reader);
}

static int fill_names(PyObject *names, Text *out, Py_ssize_t *count)
{
    *count = PyTuple_Size(names);
    if (*count < 0 || *count > MAX_NAMES) return 0;
    for (Py_ssize_t i = 0; i < *count; i++)
        if (!text_of(PyTuple_GetItem(names, i), &out[i])) return 0;
    return 1;
}

static int fill_reader(Reader *reader, PyObject *classes, PyObject *precisions, PyObject *formats)
{
    memset(reader->codes, 0xff, sizeof reader->codes);
    for (int i = 0; i < 3 + OP_VALUES; i++)
        if (!(reader->attributes[i] = PyUnicode_InternFromString(ATTRIBUTES[i]))) return 0;
    Py_ssize_t count = PyTuple_Size(classes);
    if (count < 0 || count > SLOTS / 2) return 0;
    for (Py_ssize_t code = 0; code < count; code++) {
        Text class[3];
        for (int part = 0; part < 3; part++) {
            PyObject *name = PyTuple_GetItem(PyTuple_GetItem(classes, code), part);
            if (!name || !text_of(name, &class[part])) return 0;
        }
        unsigned slot = slot_of(reader, class);
        memcpy(reader->classes[slot], class, sizeof class);
        reader->codes[slot] = code;
    }
    return fill_names(precisions, reader->precisions, &reader->n_precisions) &&
           fill_names(formats, reader->formats, &reader->n_formats);
}

PyObject *operator_reader(PyObject *module, PyObject *args)
{
    PyObject *classes, *precisions, *formats;
    Reader *reader = calloc(1, sizeof *reader);
    if (!reader) return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(reader, READER, free_reader);
    if (!capsule) {
        free(reader);
        return NULL;
    }
    if (PyArg_ParseTuple(args, "O!O!O!dd", &PyTuple_Type, &classes, &PyTuple_Type, &precisions,
                         &PyTuple_Type, &formats, &reader->sample_s, &reader->byte_s) &&
        (reader->names = PyTuple_Pack(3, classes, precisions, formats)) &&
        fill_reader(reader, classes, precisions, formats))
        return capsule;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "too many names for this module");
    Py_DECREF(capsule);
    return NULL;
}

/* --- from objects ------------------------------------------------------------------------------ */

/* Read one operator into its column of values; return 0 with an error set, 2 if it is unknown. */
static int read_object(const Reader *reader, PyObject *op, Py_ssize_t *class_code, double *values,
                       Py_ssize_t stride)
{
    Text class[3];
    for (int i = 0; i < 3 + OP_VALUES; i++) {
        PyObject *value = PyObject_GetAttr(op, reader->attributes[i]);
        if (!value) return 0;
        int is_read = 1;
        if (i < 3) {
            is_read = text_of(value, &class[i]);
        } else {
            double number = PyFloat_AsDouble(value);
            is_read = !(number == -1.0 && PyErr_Occurred());
            values[(i - 3) * stride] = number;
        }
        Py_DECREF(value); /* the operator still refers to its texts */
        if (!is_read) return 0;
    }
    *class_code = reader->codes[slot_of(reader, class)];
    return *class_code < 0 ? 2 : 1;
}

PyObject *read_operators(PyObject *module, PyObject *args)
{
    PyObject *capsule, *ops;
    if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyList_Type, &ops)) return NULL;
    const Reader *reader = PyCapsule_GetPointer(capsule, READER);
    if (!reader) return NULL;
    Py_ssize_t n = PyList_Size(ops);
    PyObject *classes = PyBytes_FromStringAndSize(NULL, n * sizeof(Py_ssize_t));
    PyObject *values = PyBytes_FromStringAndSize(NULL, n * OP_VALUES * sizeof(double));
    int is_read = classes && values;
    for (Py_ssize_t i = 0; is_read == 1 && i < n; i++) {
        PyObject *op = PyList_GetItem(ops, i);
        is_read = op ? read_object(reader, op, (Py_ssize_t *)PyBytes_AsString(classes) + i,
                                   (double *)PyBytes_AsString(values) + i, n)
                     : 0;
    }
    PyObject *out = NULL;
    if (is_read == 1) out = PyTuple_Pack(2, classes, values);
    if (is_read == 2) out = Py_NewRef(Py_None);
    Py_XDECREF(classes);
    Py_XDECREF(values);
    return out;
}

/* --- from serialized messages ------------------------------------------------------------------ */

typedef struct {
    const unsigned char *at, *end;
} Span;

static int varint(Span *span, uint64_t *out)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
        if (span->at == span->end) return 0;
        unsigned char octet = *span->at++;
        value |= (uint64_t)(octet & 0x7f) << shift;
        if (octet < 0x80) {
            *out = value;
            return 1;
        }
    }
    return 0; /* negative, or not the shortest form */
}

/* Read the number and the type of a field. protobuf rejects tags of more octets. */
static int read_tag(Span *span, uint64_t *out)
{
    const unsigned char *begin = span->at;
    return varint(span, out) && span->at - begin <= 5;
}

static int block(Span *span, Span *out)
{
    uint64_t size;
    if (!varint(span, &size) || size > (uint64_t)(span->end - span->at)) return 0;
    out->at = span->at;
    out->end = span->at += size;
    return 1;
}

static int text(Span *span, Text *out)
{
    Span found;
    if (!block(span, &found)) return 0;
    for (const unsigned char *at = found.at; at < found.end; at++)
        if (*at >= 0x80) return 0;
    *out = (Text){(const char *)found.at, found.end - found.at};
    return 1;
}

static int number(Span *span, double *out)
{
    if (span->end - span->at < 8) return 0;
    uint64_t bits = 0;
    for (int i = 7; i >= 0; i--) bits = bits << 8 | span->at[i];
    memcpy(out, &bits, 8);
    span->at += 8;
    return *out >= 0 && *out <= DBL_MAX; /* false for NaN */
}

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };
#define TAG(field, type) ((field) << 3 | (type))

static int read_op(const Reader *reader, Span span, Py_ssize_t *class_code, double *values,
                   Py_ssize_t stride)
{
    Text class[3] = {{"", 0}, {"", 0}, {"", 0}};
    uint64_t tag, counts[11] = {0};
    double flops = 0, bytes_moved = 0;
    while (span.at < span.end) {
        if (!read_tag(&span, &tag)) return 0;
        switch (tag) {
        case TAG(1, LENGTH):
            if (!text(&span, &class[0])) return 0;
            break;
        case TAG(2, LENGTH):
            if (!text(&span, &class[1])) return 0;
            break;
        case TAG(11, LENGTH):
            if (!text(&span, &class[2])) return 0;
            break;
        case TAG(8, FIXED64):
            if (!number(&span, &flops)) return 0;
            break;
        case TAG(9, FIXED64):
            if (!number(&span, &bytes_moved)) return 0;
            break;
        case TAG(3, VARINT):
        case TAG(4, VARINT):
        case TAG(5, VARINT):
        case TAG(6, VARINT):
        case TAG(7, VARINT):
        case TAG(10, VARINT):
            if (!varint(&span, &counts[tag >> 3])) return 0;
            break;
        default:
            return 0;
        }
    }
    *class_code = reader->codes[slot_of(reader, class)];
    values[0] = flops;
    values[stride] = bytes_moved;
    values[2 * stride] = (double)(int64_t)counts[4];
    values[3 * stride] = (double)(int64_t)counts[5];
    values[4 * stride] = (double)(int64_t)counts[7];
    return *class_code >= 0 && counts[4] > 0 && counts[3] <= UINT32_MAX;
}

static int read_memory(Span span, int64_t held[COMPONENTS])
{
    uint64_t tag, value;
    while (span.at < span.end) {
        if (!read_tag(&span, &tag) || (tag & 7) != VARINT || !varint(&span, &value)) return 0;
        if (tag >> 3 < 1 || tag >> 3 > COMPONENTS || value > (uint64_t)MAX_BYTES) return 0;
        held[(tag >> 3) - 1] = (int64_t)value;
    }
    return 1;
}

typedef struct {
    const Reader *reader;
    Py_ssize_t max_text, max_ops;
    PyObject *release; /* Python's function of a version, which returns None for a wrong one */
    PyObject *version;
    double version_release; /* of `version` */
    Py_ssize_t ops;         /* in total */
    Py_ssize_t *classes;
    double *values;
    Py_ssize_t done; /* operators that were read */
} Reading;

/* Compute the release of a version; return 0 with an error set, 2 if it is wrong. */
static int find_release(Reading *reading, Text version)
{
    Text known;
    if (reading->version) {
        if (!text_of(reading->version, &known)) return 0;
        if (same(known, version)) return 1;
        Py_CLEAR(reading->version);
    }
    reading->version = PyUnicode_FromStringAndSize(version.at, version.size);
    if (!reading->version) return 0;
    PyObject *found = PyObject_CallFunctionObjArgs(reading->release, reading->version, NULL);
    if (!found) return 0;
    int is_wrong = found == Py_None;
    if (!is_wrong) reading->version_release = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return is_wrong ? 2 : !PyErr_Occurred();
}

/* Read a job; return 0 with an error set, 2 if Python has to read it. */
static int read_job(Reading *reading, Span span, Text *job_id, Py_ssize_t *precision,
                    Py_ssize_t *op_count, double *scalars)
{
    const Reader *reader = reading->reader;
    Text texts[16];
    for (int i = 0; i < 16; i++) texts[i] = (Text){"", 0};
    uint64_t tag, values[17] = {0};
    int64_t held[COMPONENTS] = {0};
    int has_memory = 0;
    Py_ssize_t first = reading->done;
    Span part;
    while (span.at < span.end) {
        if (!read_tag(&span, &tag)) return 2;
        switch (tag) {
        case TAG(1, LENGTH):
        case TAG(2, LENGTH):
        case TAG(3, LENGTH):
        case TAG(4, LENGTH):
        case TAG(5, LENGTH):
        case TAG(9, LENGTH):
        case TAG(13, LENGTH):
        case TAG(15, LENGTH):
            if (!text(&span, &texts[tag >> 3]) || texts[tag >> 3].size > reading->max_text)
                return 2;
            break;
        case TAG(6, VARINT):
        case TAG(7, VARINT):
        case TAG(8, VARINT):
        case TAG(10, VARINT):
        case TAG(11, VARINT):
        case TAG(14, VARINT):
            if (!varint(&span, &values[tag >> 3])) return 2;
            break;
        case TAG(12, LENGTH):
            if (!block(&span, &part) || reading->done == reading->ops ||
                !read_op(reader, part, reading->classes + reading->done,
                         reading->values + reading->done, reading->ops))
                return 2;
            reading->done++;
            break;
        case TAG(16, LENGTH):
            if (!block(&span, &part) || !read_memory(part, held)) return 2;
            has_memory = 1;
            break;
        default:
            return 2;
        }
    }
    *op_count = reading->done - first;
    *precision = find(reader->precisions, reader->n_precisions, texts[5]);
    Py_ssize_t format = find(reader->formats, reader->n_formats, texts[13]);
    if (!has_memory || *precision < 0 || format < 0 || values[14] > 1 || !values[6] ||
        !values[7] || !values[8] || *op_count < 1 || *op_count > reading->max_ops)
        return 2;
    int is_found = find_release(reading, texts[15]);
    if (is_found != 1) return is_found;
    *job_id = texts[1];
    double batch_size = (double)(int64_t)values[6], release = reading->version_release;
    int64_t largest = held[3] > held[1] ? held[3] : held[1];
    double channels_last = same(reader->formats[format], (Text){"channels-last", 13});
    Text fp16 = {"fp16", 4}, bf16 = {"bf16", 4}, tf32 = {"tf32", 4}, fp64 = {"fp64", 4};
    double loads_data = (double)values[14];
    *scalars++ = 1;
    *scalars++ = batch_size;
    *scalars++ = (double)(int64_t)values[7];
    *scalars++ = (double)(int64_t)values[8];
    *scalars++ = same(texts[5], fp16) || same(texts[5], bf16);
    *scalars++ = same(texts[5], tf32);
    *scalars++ = same(texts[5], fp64);
    *scalars++ = channels_last;
    *scalars++ = release;
    *scalars++ = release * channels_last;
    *scalars++ = loads_data;
    *scalars++ = (reader->sample_s * batch_size + reader->byte_s * (double)held[5]) * loads_data;
    *scalars++ = (double)(int64_t)values[10];
    for (int i = 0; i < COMPONENTS; i++) *scalars++ = (double)held[i];
    *scalars = (double)(held[0] + held[2] + held[5] + largest + held[4]);
    return 1;
}

/* Find the jobs of a request, and count their operators; return 0 if Python has to read it. */
static int count_jobs(Span span, Py_ssize_t *jobs, Py_ssize_t *ops)
{
    uint64_t tag, value;
    Span part;
    while (span.at < span.end) {
        if (!read_tag(&span, &tag)) return 0;
        if (tag == TAG(1, LENGTH)) {
            if (!block(&span, &part)) return 0;
            ++*jobs;
            while (part.at < part.end) {
                Span inner;
                if (!read_tag(&part, &tag)) return 0;
                if ((tag & 7) == LENGTH ? !block(&part, &inner)
                                        : (tag & 7) != VARINT || !varint(&part, &value))
                    return 0;
                *ops += tag == TAG(12, LENGTH);
            }
        } else if ((tag & 7) == LENGTH) {
            if (!block(&span, &part)) return 0;
        } else if ((tag & 7) == VARINT) {
            if (!varint(&span, &value)) return 0;
        } else if ((tag & 7) == FIXED64 && span.end - span.at >= 8) {
            span.at += 8;
        } else if ((tag & 7) == FIXED32 && span.end - span.at >= 4) {
            span.at += 4;
        } else {
            return 0;
        }
    }
    return 1;
}

/* Read all jobs; return as read_job. The remaining fields are copied to `rest`. */
static int read_all(Reading *reading, Span span, PyObject *job_ids, Py_ssize_t *precisions,
                    Py_ssize_t *op_counts, double *scalars, char *rest, Py_ssize_t *rest_size)
{
    uint64_t tag, value;
    Span part;
    for (Py_ssize_t job = 0; span.at < span.end;) {
        const unsigned char *begin = span.at;
        if (!read_tag(&span, &tag)) return 2;
        if (tag == TAG(1, LENGTH)) {
            Text job_id;
            if (!block(&span, &part)) return 2;
            int is_read = read_job(reading, part, &job_id, &precisions[job], &op_counts[job],
                                   scalars + job * JOB_SCALARS);
            if (is_read != 1) return is_read;
            PyObject *name = PyUnicode_FromStringAndSize(job_id.at, job_id.size);
            if (!name || PyTuple_SetItem(job_ids, job, name)) return 0;
            job++;
            continue;
        }
        switch (tag & 7) {
        case LENGTH: block(&span, &part); break;
        case VARINT: varint(&span, &value); break;
        case FIXED64: span.at += 8; break;
        default: span.at += 4;
        }
        memcpy(rest + *rest_size, begin, span.at - begin);
        *rest_size += span.at - begin;
    }
    return 1;
}

PyObject *read_jobs(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    Reading reading = {0};
    const char *content;
    Py_ssize_t size, jobs = 0, rest_size = 0;
    if (!PyArg_ParseTuple(args, "Oy#Onn", &capsule, &content, &size, &reading.release,
                          &reading.max_text, &reading.max_ops))
        return NULL;
    if (!(reading.reader = PyCapsule_GetPointer(capsule, READER))) return NULL;
    Span span = {(const unsigned char *)content, (const unsigned char *)content + size};
    if (!count_jobs(span, &jobs, &reading.ops) || !reading.ops) Py_RETURN_NONE;
    PyObject *job_ids = PyTuple_New(jobs);
    PyObject *precisions = PyBytes_FromStringAndSize(NULL, jobs * sizeof(Py_ssize_t));
    PyObject *op_counts = PyBytes_FromStringAndSize(NULL, jobs * sizeof(Py_ssize_t));
    PyObject *scalars = PyBytes_FromStringAndSize(NULL, jobs * JOB_SCALARS * sizeof(double));
    PyObject *classes = PyBytes_FromStringAndSize(NULL, reading.ops * sizeof(Py_ssize_t));
    PyObject *values = PyBytes_FromStringAndSize(NULL, reading.ops * OP_VALUES * sizeof(double));
    char *rest = malloc(size);
    PyObject *out = NULL;
    if (!rest) PyErr_NoMemory();
    if (job_ids && precisions && op_counts && scalars && classes && values && rest) {
        reading.classes = (Py_ssize_t *)PyBytes_AsString(classes);
        reading.values = (double *)PyBytes_AsString(values);
        int is_read = read_all(&reading, span, job_ids, (Py_ssize_t *)PyBytes_AsString(precisions),
                               (Py_ssize_t *)PyBytes_AsString(op_counts),
                               (double *)PyBytes_AsString(scalars), rest, &rest_size);
        if (is_read == 1)
            out = Py_BuildValue("(y#OOOOOO)", rest, rest_size, job_ids, precisions, scalars,
                                op_counts, classes, values);
        else if (is_read == 2)
            out = Py_NewRef(Py_None);
    }
    free(rest);
    Py_XDECREF(reading.version);
    Py_XDECREF(job_ids);
    Py_XDECREF(precisions);
    Py_XDECREF(op_counts);
    Py_XDECREF(scalars);
    Py_XDECREF(classes);
    Py_XDECREF(values);
    return out;
}
