module example.com/forecasts

go 1.22
