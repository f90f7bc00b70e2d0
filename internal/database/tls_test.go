package database

import (
	"strings"
	"testing"
)

func TestURLCheck(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"mysql://ann@db/app?ssl-ca=/no/such.pem":                   "no such file",
		"mysql://ann@db/app?ssl-ca=":                               "ssl-ca must name a file",
		"mysql://ann@db/app?ssl-ca=tls_test.go":                    "no certificate in PEM",
		"mysql://ann@db/app?tls=skip-verify&ssl-ca=tls_test.go":    "write tls=true instead",
		"mysql://ann@db/app?ssl-cert=tls_test.go":                  "given together",
		"mysql://ann@/app?socket=/run/m.sock&ssl-ca=tls_test.go":   "a socket has no TLS",
		"mysql://ann@db/app?ssl_ca=/no/such.pem":                   "ssl_ca is no parameter",
		"postgres://db/app?sslmode=verify-full&sslrootcert=/no/ca": "no such file",
		"mysql://ann@db/app?tls=true&timeout=3s":                   "",
		"sqlite:app.db":                                            "",
	} {
		u, err := Parse(address)
		if err == nil {
			err = u.Check()
		}
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", address, err, says)
		}
	}
}
