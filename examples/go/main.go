// Forecasts of one job on several kinds of devices, over gRPC.
//
//	go run . job.json t4 v100-16gb a100-40gb
//
// job.json is written by `presage features MODEL --json`. docs/tutorials/ask_for_forecasts.md has
// the commands that generate the package pb.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"example.com/forecasts/pb"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: forecasts JOB.json KIND...")
	}
	job, err := readJob(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	connection, err := grpc.NewClient("127.0.0.1:50051", plain)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	if err := predict(pb.NewPredictionServiceClient(connection), job, os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func readJob(path string) (*pb.Job, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	job := &pb.Job{}
	return job, protojson.Unmarshal(text, job)
}

func predict(client pb.PredictionServiceClient, job *pb.Job, kinds []string) error {
	request := &pb.PredictRequest{Jobs: []*pb.Job{job}}
	for _, kind := range kinds {
		request.Devices = append(request.Devices, &pb.Device{Kind: kind})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	response, err := client.Predict(ctx, request)
	if err != nil { // no forecast in time: a scheduler allocates an exclusive device
		return err
	}
	for i, forecast := range response.Forecasts {
		if forecast.Error != nil { // the others are valid
			fmt.Printf("%-10s %s\n", kinds[i], forecast.Error.Message)
			continue
		}
		runtime := forecast.RuntimeS
		fmt.Printf("%-10s %4.0f s (%.0f s to %.0f s), in domain: %t\n",
			kinds[i], runtime.Median, runtime.Low, runtime.High, runtime.InDomain)
	}
	return nil
}
