package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/exit"
	"spillway/internal/serve/queue"
)

// certificateEvery is how often the files of the certificate are read.
const certificateEvery = time.Second

// certificate is the certificate of the public listener. New connections get the one that is
// in its files. While the files are not a certificate with its key, as halfway through a
// replacement, they get the last one that was.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	pair              atomic.Pointer[tls.Certificate]

	mu        sync.Mutex // guards what follows
	cert, key []byte     // of the files, when they were read last
	failures  failureLog
}

// openCertificate reads the certificate, if one is configured.
func (a *app) openCertificate() error {
	h := a.cfg.HTTP
	if h.TLSCert == "" {
		return nil
	}
	c := &certificate{certFile: h.TLSCert, keyFile: h.TLSKey, log: a.log}
	if _, err := c.readLocked(); err != nil {
		return exit.UsageError(fmt.Errorf("load TLS certificate: %w", err))
	}
	a.certificate = c
	a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_tls_certificate_expires_timestamp_seconds", Help: "When the certificate that new connections get expires.",
	}, func() float64 { return float64(c.pair.Load().Leaf.NotAfter.Unix()) }))
	return nil
}

// config returns the settings of connections.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil },
		MinVersion:     tls.VersionTLS12,
	}
}

// readLocked reads the files, and reports whether there is a new certificate in them.
func (c *certificate) readLocked() (changed bool, err error) {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return false, err
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return false, err
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil && bytes.Contains(key, []byte("ENCRYPTED")) {
		return false, fmt.Errorf("%s is encrypted with a passphrase, which cannot be given; decrypt it: openssl pkey -in %s -out PLAIN.key",
			c.keyFile, c.keyFile)
	}
	if err != nil {
		return false, fmt.Errorf("%s and %s: %w", c.certFile, c.keyFile, err)
	}
	c.cert, c.key = cert, key
	c.pair.Store(&pair)
	return true, nil
}

// watch reads the files again and again until ctx ends.
func (c *certificate) watch(ctx context.Context) error {
	for queue.Sleep(ctx, certificateEvery); ctx.Err() == nil; queue.Sleep(ctx, certificateEvery) {
		c.renew(time.Now())
	}
	return nil
}

// renew reads the files and logs what came of it. It may be called concurrently.
func (c *certificate) renew(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed, err := c.readLocked()
	switch {
	case err != nil && c.failures.due(err, now):
		c.log.Warn("TLS certificate cannot be read; the last one stays", "error", err)
	case err == nil:
		c.failures = failureLog{}
	}
	if changed {
		leaf := c.pair.Load().Leaf
		c.log.Info("TLS certificate replaced", "subject", leaf.Subject.String(), "not_after", leaf.NotAfter)
	}
}
