package database

import (
	"strings"
	"testing"
)

func TestURLCheck(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"mysql://ann@db/app?ssl-ca=/no/such.pem":                             "no such file",
		"mysql://ann@db/app?ssl-ca=":                                         "ssl-ca must name a file",
		"mysql://ann@db/app?ssl-ca=tls_test.go":                              "no certificate in PEM",
		"mysql://ann@db/app?tls=skip-verify&ssl-ca=tls_test.go":              "write tls=true instead",
		"mysql://ann@db/app?ssl-cert=tls_test.go":                            "given together",
		"mysql://ann@/app?socket=/run/m.sock&ssl-ca=tls_test.go":             "a socket has no TLS",
		"mysql://ann@db/app?ssl_ca=/no/such.pem":                             "looks like ssl-ca",
		"mysql://ann@db/app?SSL-CA=/x":                                       "looks like ssl-ca",
		"mysql://ann@db/app?ca=/x":                                           "TLS has tls, ssl-ca",
		"mysql://ann@db/app?sslmode=verify-ca":                               "TLS has tls, ssl-ca",
		"mysql://ann@db/app?TLS=true":                                        "looks like tls",
		"mysql://ann@db/app?read_timeout=1s":                                 "looks like readTimeout",
		"mysql://ann@db/app?wait_timeout=9&max_allowed_packet=9&sql_mode=''": "",
		"postgres://db/app?sslmod=verify-full":                               "looks like sslmode",
		"postgres://db/app?SSLMODE=verify-full":                              "looks like sslmode",
		"postgres://db/app?ssl=true":                                         "TLS has sslmode",
		"postgres://db/app?key=/x":                                           "TLS has sslmode",
		"postgres://db/app?Statement_Timeout=9&search_path=a&role=b&options=-cwork_mem%3D1MB&pool_max_conns=4&lock_timeout=9": "",

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
