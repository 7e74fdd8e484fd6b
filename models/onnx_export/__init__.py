"""Export of predictors to ONNX, as inference graphs with preprocessing and calibration inside."""
