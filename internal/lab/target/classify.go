package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

// Classify names the class of an outcome's error; err is not nil.
func Classify(err error) result.ErrorClass {
	switch {
	case errors.Is(err, errStatus):
		return result.StatusError
	case errors.Is(err, errCheck):
		return result.CheckError
	case errors.Is(err, errMalformed):
		return result.Protocol
	case errors.Is(err, errTimeout), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return result.Timeout
	case errors.Is(err, errCutShort), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return result.Reset
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return classifyErrno(errno)
	}
	var resolve *net.DNSError
	if errors.As(err, &resolve) {
		return result.Resolve
	}
	if isTLS(err) {
		return result.TLSError
	}
	return result.Other
}

func classifyErrno(errno unix.Errno) result.ErrorClass {
	switch errno {
	case unix.ECONNREFUSED, unix.ENOENT: // ENOENT: no such Unix socket
		return result.Refused
	case unix.ECONNRESET, unix.EPIPE, unix.ECONNABORTED, unix.ENOTCONN:
		return result.Reset
	case unix.ETIMEDOUT, unix.EAGAIN: // EAGAIN: a Unix socket whose accept queue is full
		return result.Timeout
	case unix.EADDRNOTAVAIL, unix.EADDRINUSE:
		return result.NoLocalPort
	case unix.EMFILE, unix.ENFILE:
		return result.NoFile
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN:
		return result.Unreachable
	}
	return result.Other
}

func isTLS(err error) bool {
	var (
		record      tls.RecordHeaderError
		alert       tls.AlertError
		certificate *tls.CertificateVerificationError
		unknown     x509.UnknownAuthorityError
		hostname    x509.HostnameError
	)
	return errors.Is(err, errTLS) || errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &certificate) ||
		errors.As(err, &unknown) || errors.As(err, &hostname)
}

// errTLS is wrapped by whatever ends a TLS handshake badly.
var errTLS = errors.New("TLS handshake")
