package database

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// clientParameters are those parameters of an address that are not settings of the server.
func clientParameters(driver Driver) []string {
	if driver == MySQL {
		return strings.Fields("socket ssl-ca ssl-cert ssl-key tls allowAllFiles allowCleartextPasswords allowFallbackToPlaintext " +
			"allowNativePasswords allowOldPasswords charset checkConnLiveness clientFoundRows collation columnsWithAlias compress " +
			"connectionAttributes interpolateParams loc maxAllowedPacket multiStatements parseTime readTimeout rejectReadOnly serverPubKey " +
			"strict timeTruncate timeout writeTimeout")
	}
	return strings.Fields("host hostaddr port database dbname user password passfile connect_timeout sslmode sslkey sslcert sslcertmode " +
		"sslrootcert sslnegotiation sslpassword sslsni krbspn krbsrvname target_session_attrs service servicefile " +
		"min_protocol_version max_protocol_version channel_binding require_auth")
}

// checkParameters refuses what looks like a misspelled parameter of the client or one of another program. It would otherwise be
// taken for a setting of the server.
func checkParameters(driver Driver, query []string) error {
	known := clientParameters(driver)
	for _, pair := range query {
		name, _, _ := strings.Cut(pair, "=")
		name, _ = url.QueryUnescape(name) // checked by parseServer
		if slices.Contains(known, name) {
			continue
		}
		lower := strings.ToLower(name)
		for _, meant := range known {
			if isNear(lower, strings.ToLower(meant)) {
				return fmt.Errorf("a parameter looks like %s, and is not; write %s", meant, meant)
			}
		}
		ofTLS := func(word string) bool { return strings.Contains(lower, word) }
		if lower == "ca" || lower == "key" || slices.ContainsFunc([]string{"ssl", "tls", "cert"}, ofTLS) {
			tls := map[Driver]string{MySQL: "tls, ssl-ca, ssl-cert and ssl-key", Postgres: "sslmode, sslrootcert, sslcert and sslkey"}
			return fmt.Errorf("a parameter looks like one of TLS, and is none; TLS has %s", tls[driver])
		}
	}
	return nil
}

// isNear reports whether at most one inserted, removed or changed byte makes one text the other.
func isNear(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	same := 0
	for same < len(a) && a[same] == b[same] {
		same++
	}
	return a == b || len(a) == len(b) && a[same+1:] == b[same+1:] || len(a)+1 == len(b) && a[same:] == b[same+1:]
}
