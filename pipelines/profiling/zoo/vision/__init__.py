"""Job families for detection, segmentation, point clouds and image generation."""
