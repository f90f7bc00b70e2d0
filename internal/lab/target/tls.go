package target

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// tls returns the TLS configuration for a server of that name. Every connection
// does a full handshake.
func (c *Config) tls(serverName string, protocols ...string) (*tls.Config, error) {
	config := &tls.Config{ServerName: serverName, InsecureSkipVerify: c.Insecure, NextProtos: protocols}
	switch {
	case c.CACert != "" && c.Insecure:
		return nil, errors.New("--cacert and --insecure: give one of them")
	case (c.Cert == "") != (c.Key == ""):
		return nil, errors.New("--cert and --key: give both; they may name the same file")
	}
	if c.CACert != "" {
		text, err := ReadFile(c.CACert)
		if err != nil {
			return nil, fmt.Errorf("--cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--cacert %s: no certificate in PEM format", c.CACert)
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("--cert and --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// adviseTLS adds what to do about a certificate that is not trusted.
func adviseTLS(err error) error {
	if is[x509.UnknownAuthorityError](err) {
		return fmt.Errorf("%w; name its authority with --cacert FILE, or accept any certificate with --insecure", err)
	}
	return err
}
