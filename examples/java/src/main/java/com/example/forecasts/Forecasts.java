package com.example.forecasts;

import com.google.protobuf.util.JsonFormat;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import presage.v1.Prediction;
import presage.v1.PredictionServiceGrpc;

/**
 * Forecasts of one job on several kinds of devices, over gRPC.
 *
 * <p>The first argument is a file that {@code presage features MODEL --json} wrote, the others are
 * kinds of devices. README.md has the commands that build and run it.
 */
public final class Forecasts {
  private static final String SERVER = "127.0.0.1:50051";

  public static void main(String[] args) throws IOException {
    if (args.length < 2) {
      System.err.println("usage: forecasts JOB.json KIND...");
      System.exit(2);
    }
    Prediction.PredictRequest.Builder request = Prediction.PredictRequest.newBuilder();
    request.addJobs(readJob(Path.of(args[0])));
    for (int i = 1; i < args.length; i++) {
      request.addDevices(Prediction.Device.newBuilder().setKind(args[i]));
    }
    String server = System.getenv().getOrDefault("PRESAGE_SERVER", SERVER);
    ManagedChannel channel = ManagedChannelBuilder.forTarget(server).usePlaintext().build();
    try {
      predict(channel, request.build());
    } catch (StatusRuntimeException error) {
      // No forecast in time: a scheduler allocates an exclusive device.
      System.err.println(error.getStatus().getDescription());
      System.exit(1);
    } finally {
      channel.shutdownNow();
    }
  }

  private static Prediction.Job readJob(Path path) throws IOException {
    Prediction.Job.Builder job = Prediction.Job.newBuilder();
    JsonFormat.parser().merge(Files.readString(path), job);
    return job.build();
  }

  private static void predict(ManagedChannel channel, Prediction.PredictRequest request) {
    Prediction.PredictResponse response =
        PredictionServiceGrpc.newBlockingStub(channel)
            .withDeadlineAfter(2, TimeUnit.SECONDS) // the first call connects
            .predict(request);
    for (int i = 0; i < response.getForecastsCount(); i++) {
      Prediction.JobForecast forecast = response.getForecasts(i);
      String kind = request.getDevices(i).getKind();
      if (forecast.hasError()) { // the others are valid
        System.out.printf("%-10s %s%n", kind, forecast.getError().getMessage());
        continue;
      }
      Prediction.Forecast runtime = forecast.getRuntimeS();
      System.out.printf(
          "%-10s %4.0f s (%.0f s to %.0f s), in domain: %b%n",
          kind, runtime.getMedian(), runtime.getLow(), runtime.getHigh(), runtime.getInDomain());
    }
  }

  private Forecasts() {}
}
