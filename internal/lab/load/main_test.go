package load

import (
	"crypto/tls"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startTLS is server.StartTLS with a certificate whose handshakes cost little.
func startTLS(t testing.TB, server *httptest.Server) {
	t.Helper()
	certificate, err := tls.X509KeyPair(apptest.Certificate(t, "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
}
