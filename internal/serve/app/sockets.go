package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"spillway/internal/exit"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/server"
)

// sockets are the listeners that the service manager has opened for this process.
type sockets struct {
	public *server.Listener // nil: none
	admin  *server.Listener // nil: none
}

// passedSockets takes over the sockets that the service manager has passed: the one with the
// name "admin", and one more for the public listener.
func passedSockets() (sockets, error) {
	var s sockets
	for _, file := range activation.Files(true) {
		ln, err := server.Passed(file)
		if err = errors.Join(err, file.Close()); err != nil {
			s.close()
			return s, exit.UsageError(err)
		}
		switch {
		case file.Name() == "admin" && s.admin == nil:
			s.admin = ln
		case file.Name() != "admin" && s.public == nil:
			s.public = ln
		default:
			err := fmt.Errorf("the service manager has passed more sockets than the public listener and one named admin: remove %s, named %s",
				addressOf(ln), file.Name())
			_ = ln.Close()
			s.close()
			return s, exit.UsageError(err)
		}
	}
	return s, nil
}

// listenPublic returns the passed listener, or opens the one at an address.
func (s *sockets) listenPublic(ctx context.Context, address string) (*server.Listener, error) {
	if ln := s.public; ln != nil {
		s.public = nil
		return ln, nil
	}
	return server.Listen(ctx, address)
}

// listenAdmin is listenPublic for the admin listener.
func (s *sockets) listenAdmin(ctx context.Context, adm *admin.Server, address string) (net.Listener, error) {
	if ln := s.admin; ln != nil {
		s.admin = nil
		return ln, nil
	}
	if strings.HasPrefix(address, config.UnixPrefix) {
		return server.Listen(ctx, address)
	}
	return adm.Listen(ctx)
}

// close closes the listeners that nobody has asked for.
func (s *sockets) close() {
	for _, ln := range []*server.Listener{s.public, s.admin} {
		if ln != nil {
			_ = ln.Close() // the service manager keeps the socket
		}
	}
	*s = sockets{}
}

// addressOf returns the address of a listener as the configuration writes it.
func addressOf(ln net.Listener) string {
	if unix, ok := ln.Addr().(*net.UnixAddr); ok {
		return config.UnixPrefix + unix.Name
	}
	return ln.Addr().String()
}

// What the service manager is told (sd_notify).
const (
	ready    = daemon.SdNotifyReady
	stopping = daemon.SdNotifyStopping
)

// notify sends a state to the service manager, if there is one.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("service manager cannot be told", "socket", os.Getenv("NOTIFY_SOCKET"), "state", state, "error", err)
	}
}
