// Package greet names the one gRPC method that the gateway calls and the greeter answers: a session's text in, a text out.
//
// Both messages are the standard wrapper of a string, so that nothing has to be generated. It promises no more than that
// both sides mean the same method.
package greet

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Service is the name under which a greeter registers.
const Service = "ladder.Greeter"

// Hello is the method's full name.
const Hello = "/" + Service + "/Hello"

// A Greeter answers Hello. It may be called concurrently.
type Greeter interface {
	Hello(ctx context.Context, session *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

// Description is what a gRPC server needs to know to serve a Greeter.
func Description() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: Service,
		HandlerType: (*Greeter)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Hello", Handler: handle}},
		Metadata:    "greet.go",
	}
}

func handle(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	session := &wrapperspb.StringValue{}
	if err := decode(session); err != nil {
		return nil, err
	}
	return server.(Greeter).Hello(ctx, session)
}
