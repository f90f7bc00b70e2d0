// Command greeter is the service behind the gateway: it registers itself and answers one gRPC method with the empty endpoint's
// text.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ladder/greet"
)

// heartbeat is how often the registration is renewed; the registry forgets it after three.
const heartbeat = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "greeter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	listen := flag.String("listen", "127.0.0.1:8092", "address to serve gRPC on")
	registry := flag.String("registry", "http://127.0.0.1:8090", "URL of the registry")
	flag.Parse()

	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	place := fmt.Sprintf("%s/services/%s/%s", *registry, greet.Service, listener.Addr())
	if err := tell(ctx, http.MethodPut, place); err != nil {
		return errors.Join(fmt.Errorf("register: %w", err), listener.Close())
	}
	server := grpc.NewServer()
	server.RegisterService(greet.Description(), greeter{})
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
