// Forecasts of one job on several kinds of devices, over gRPC.
//
//   build/forecasts job.json t4 v100-16gb a100-40gb
//
// job.json is written by `presage features MODEL --json`. README.md has the commands that build it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include "prediction.grpc.pb.h"

namespace pb = presage::v1;

pb::Job ReadJob(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!(text << file.rdbuf())) throw std::runtime_error(path + " cannot be read");
  pb::Job job;
  const auto status = google::protobuf::util::JsonStringToMessage(text.str(), &job);
  if (!status.ok()) throw std::runtime_error(path + ": " + status.ToString());
  return job;
}

// Prints the forecasts, and returns the status of the call.
grpc::Status Predict(pb::PredictionService::Stub& service, const pb::PredictRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  pb::PredictResponse response;
  const grpc::Status status = service.Predict(&context, request, &response);
  for (int i = 0; i < response.forecasts_size(); ++i) {
    const pb::JobForecast& forecast = response.forecasts(i);
    const char* kind = request.devices(i).kind().c_str();
    if (forecast.has_error()) {  // the others are valid
      std::printf("%-10s %s\n", kind, forecast.error().message().c_str());
      continue;
    }
    const pb::Forecast& runtime = forecast.runtime_s();
    std::printf("%-10s %4.0f s (%.0f s to %.0f s), in domain: %s\n", kind, runtime.median(),
                runtime.low(), runtime.high(), runtime.in_domain() ? "true" : "false");
  }
  return status;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: forecasts JOB.json KIND...\n";
    return 2;
  }
  pb::PredictRequest request;
  try {
    *request.add_jobs() = ReadJob(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  for (int i = 2; i < argc; ++i) request.add_devices()->set_kind(argv[i]);
  const char* server = std::getenv("PRESAGE_SERVER");
  const auto channel = grpc::CreateChannel(server != nullptr ? server : "127.0.0.1:50051",
                                           grpc::InsecureChannelCredentials());
  const auto service = pb::PredictionService::NewStub(channel);
  const grpc::Status status = Predict(*service, request);
  if (!status.ok()) {  // no forecast in time: a scheduler allocates an exclusive device
    std::cerr << status.error_message() << "\n";
    return 1;
  }
  return 0;
}
