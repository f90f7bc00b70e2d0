package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// heartbeat is how often the registration is renewed; the registry forgets it after three.
const heartbeat = 5 * time.Second

// runGreeter is the service behind the gateway: it registers itself and answers one gRPC method with the empty endpoint's text.
func runGreeter(ctx context.Context, flags *flag.FlagSet, args []string) error {
	address := flags.String("listen", "127.0.0.1:8092", "address to serve gRPC on")
	registry := flags.String("registry", "http://127.0.0.1:8090", "URL of the registry")
	if err := flags.Parse(args); err != nil {
		return err
	}

	listener, err := listen(*address)
	if err != nil {
		return err
	}
	place := fmt.Sprintf("%s/services/%s/%s", *registry, greeterService, listener.Addr())
	if err := tell(ctx, http.MethodPut, place); err != nil {
		return errors.Join(fmt.Errorf("register: %w", err), listener.Close())
	}
	server := grpc.NewServer()
	server.RegisterService(greeterDescription(), greeter{})
	var group sync.WaitGroup
	group.Go(func() {
		renew(ctx, place)
		server.GracefulStop()
	})
	err = server.Serve(listener)
	group.Wait()
	return err
}

// renew keeps the registration until ctx ends, then takes it back.
func renew(ctx context.Context, place string) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := tell(ctx, http.MethodPut, place); err != nil {
				fmt.Fprintln(os.Stderr, "greeter: renew:", err)
			}
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = tell(last, http.MethodDelete, place) // it ends by itself when it is not renewed
			return
		}
	}
}

// tell sends a request without a body to the registry.
func tell(ctx context.Context, method, url string) error {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the registry answers %s", response.Status)
	}
	return nil
}

type greeter struct{}

// Hello answers the empty endpoint's text.
func (greeter) Hello(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	return wrapperspb.String("hello world!!"), nil
}

// greeterService is the name under which a greeter registers, and greeterHello the full name of its one method: a session's
// text in, a text out. Both messages are the standard wrapper of a string, so that nothing has to be generated.
const (
	greeterService = "ladder.Greeter"
	greeterHello   = "/" + greeterService + "/Hello"
)

// greets is what gRPC checks a greeter against.
type greets interface {
	Hello(ctx context.Context, session *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

func greeterDescription() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: greeterService,
		HandlerType: (*greets)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Hello", Handler: handleHello}},
		Metadata:    "greeter.go",
	}
}

func handleHello(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	session := &wrapperspb.StringValue{}
	if err := decode(session); err != nil {
		return nil, err
	}
	return server.(greets).Hello(ctx, session)
}
