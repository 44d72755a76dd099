module duemq.example/frames

go 1.21
