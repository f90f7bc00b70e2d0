// The programs that spillway is compared with. They are no part of the product: what they need, it does not.
module ladder

go 1.26.0

require (
	github.com/gomodule/redigo v1.9.3
	github.com/redis/rueidis v1.0.79
	github.com/valyala/fasthttp v1.74.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/klauspost/compress v1.20.0 // indirect
	github.com/molecule-man/go-brrr v1.0.1 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)
