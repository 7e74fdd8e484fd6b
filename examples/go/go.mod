module example.com/forecasts

go 1.24

require (
	google.golang.org/grpc v1.64.0
	google.golang.org/protobuf v1.36.6
)
