"""Subset of TensorFlow's graph messages that we read, without TensorFlow or generated code.

They are in a separate descriptor pool: an installed TensorFlow registers its messages in the
default pool, where a second definition is an error. Unnamed fields, which are most of a file
besides its graph, are skipped.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from presage.system.message_fields import add_fields

# Names and numbers: tensorflow/core/framework/{graph,node_def,attr_value,tensor,tensor_shape,
# function,op_def,variable}.proto and tensorflow/core/protobuf/{saved_model,meta_graph,
# saved_object_graph}.proto. Names of messages are our own; names of fields are those of text
# files.
_SCHEMA = """
message Dim { int64 size = 1; }
message Shape { repeated Dim dim = 2; bool unknown_rank = 3; }
message Tensor {
  DataType dtype = 1; Shape tensor_shape = 2; bytes tensor_content = 4;
  repeated float float_val = 5; repeated double double_val = 6; repeated int32 int_val = 7;
  repeated int64 int64_val = 10; repeated bool bool_val = 11;
  repeated uint32 uint32_val = 16; repeated uint64 uint64_val = 17;
}
message ListValue {
  repeated bytes s = 2; repeated int64 i = 3; repeated DataType type = 6;
  repeated Shape shape = 7; repeated NameAttrList func = 9;
}
message AttrValue {
  ListValue list = 1; bytes s = 2; int64 i = 3; float f = 4; bool b = 5; DataType type = 6;
  Shape shape = 7; Tensor tensor = 8; NameAttrList func = 10;
}
message NameAttrList { string name = 1; }
message NodeDef {
  string name = 1; string op = 2; repeated string input = 3; map<string, AttrValue> attr = 5;
}
message ArgDef { string name = 1; }
message OpDef { string name = 1; repeated ArgDef input_arg = 2; repeated ArgDef output_arg = 3; }
message FunctionDef {
  OpDef signature = 1; repeated NodeDef node_def = 3; map<string, string> ret = 4;
  map<string, string> control_ret = 6;
}
message FunctionDefLibrary { repeated FunctionDef function = 1; }
message GraphDef { repeated NodeDef node = 1; FunctionDefLibrary library = 2; }
message TensorInfo { string name = 1; }
message SignatureDef {
  map<string, TensorInfo> inputs = 1; map<string, TensorInfo> outputs = 2;
}
message BytesList { repeated bytes value = 1; }
message CollectionDef { BytesList bytes_list = 2; }
message VariableDef { string variable_name = 1; }
message MetaInfoDef { repeated string tags = 4; }
message SavedVariable { bool trainable = 3; string name = 6; }
message SavedObject { SavedVariable variable = 7; }
message SavedObjectGraph { repeated SavedObject nodes = 1; }
message MetaGraphDef {
  MetaInfoDef meta_info_def = 1; GraphDef graph_def = 2;
  map<string, CollectionDef> collection_def = 4; map<string, SignatureDef> signature_def = 5;
  SavedObjectGraph object_graph_def = 7;
}
message SavedModel { repeated MetaGraphDef meta_graphs = 2; }
"""
# tensorflow/core/framework/types.proto; a reference to a type is the type plus 100.
DATA_TYPES = {
    "DT_INVALID": 0, "DT_FLOAT": 1, "DT_DOUBLE": 2, "DT_INT32": 3, "DT_UINT8": 4, "DT_INT16": 5,
    "DT_INT8": 6, "DT_STRING": 7, "DT_COMPLEX64": 8, "DT_INT64": 9, "DT_BOOL": 10, "DT_QINT8": 11,
    "DT_QUINT8": 12, "DT_QINT32": 13, "DT_BFLOAT16": 14, "DT_QINT16": 15, "DT_QUINT16": 16,
    "DT_UINT16": 17, "DT_COMPLEX128": 18, "DT_HALF": 19, "DT_RESOURCE": 20, "DT_VARIANT": 21,
    "DT_UINT32": 22, "DT_UINT64": 23, "DT_FLOAT8_E5M2": 24, "DT_FLOAT8_E4M3FN": 25,
    "DT_INT4": 29, "DT_UINT4": 30,
}  # fmt: skip
_PACKAGE = "presage.tensorflow"


def message(name: str) -> Any:
    """Return the class of the message ``name``."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="presage/tensorflow.proto", package=_PACKAGE, syntax="proto3"
    )
    names = file.enum_type.add(name="DataType").value
    for name, number in DATA_TYPES.items():
        names.add(name=name, number=number)
        if number:
            names.add(name=f"{name}_REF", number=number + 100)
    for name, body in re.findall(r"message (\w+) \{(.*?)\}", _SCHEMA, re.DOTALL):
        into = file.message_type.add(name=name)
        add_fields(into, body, scope=name, package=_PACKAGE, enums={"DataType"})
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _pool()
