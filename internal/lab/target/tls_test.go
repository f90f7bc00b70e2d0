package target

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// clientCertificate writes a new certificate and its key to one file.
func clientCertificate(t *testing.T) (path string) {
	t.Helper()
	certificate, key := apptest.Certificate(t, "client")
	return writeFile(t, "client.pem", string(certificate)+string(key))
}

func pemText(kind string, bytes []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
}

// TestCertificates has servers that demand a certificate of the client, and
// whose own is signed by an authority that only --cacert names.
func TestCertificates(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) {}))
	server.EnableHTTP2 = true
	// With TLS 1.3 the client could send its request before it learns of the rejection.
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	redis := hostile(t, func(_ int, raw net.Conn) {
		conn := tls.Server(raw, server.TLS)
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			if lines.Text() == "PING" {
				io.WriteString(conn, "+PONG\r\n")
			}
		}
	})
	authority := writeFile(t, "ca.pem", pemText("CERTIFICATE", server.Certificate().Raw))
	client := clientCertificate(t)
	for name, c := range map[string]Config{
		"https": {URL: server.URL}, "HTTP/2": {URL: server.URL, HTTP2: true}, "rediss": {URL: "rediss://" + redis, Commands: []string{"PING"}},
	} {
		for _, test := range []struct {
			authority, client string
			want              result.ErrorClass
			ok                bool
		}{{authority, client, 0, true}, {authority, "", result.TLSError, false}, {"", client, result.TLSError, false}} {
			c.CACert, c.Cert, c.Key = test.authority, test.client, test.client
			tg := open(t, c)
			outcomes, _ := exchangeAll(t, tg, 1)
			if err := outcomes[0].Err; (err == nil) != test.ok || err != nil && Classify(err) != test.want {
				t.Errorf("%s, authority %q, client %q: %v", name, test.authority, test.client, err)
			}
			if err := tg.Check(t.Context()); test.authority == "" && (err == nil || !strings.Contains(err.Error(), "--cacert FILE")) {
				t.Errorf("%s: check without the authority: %v", name, err)
			}
		}
	}
}

func TestCertificateErrors(t *testing.T) {
	empty := writeFile(t, "empty.pem", "")
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{CACert: "/no/such"}, "--cacert: open /no/such"},
		{Config{CACert: empty}, "no certificate in PEM format"},
		{Config{CACert: empty, Insecure: true}, "--cacert and --insecure: give one"},
		{Config{Cert: empty}, "--cert and --key: give both"},
		{Config{Cert: empty, Key: empty}, "--cert and --key: tls:"},
	} {
		test.config.Timeout = time.Minute
		for _, url := range []string{"https://127.0.0.1/", "rediss://127.0.0.1/"} {
			if test.config.URL, test.config.Commands = url, nil; url[0] == 'r' {
				test.config.Commands = []string{"PING"}
			}
			if _, err := Open(t.Context(), test.config); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", url, err, test.want)
			}
		}
	}
	if _, err := Open(t.Context(), Config{URL: "http://127.0.0.1/", CACert: empty, Timeout: time.Minute}); err == nil || !strings.Contains(err.Error(), "not for scheme http") {
		t.Errorf("http: %v", err)
	}
}
