package main

import "strings"

// sessionCookie is the name of the cookie that holds the session.
const sessionCookie = "sid"

// sessionBySplit finds the session by taking the whole header apart, one slice for the cookies and one for each cookie,
// until the right one comes.
func sessionBySplit(header string) (string, bool) {
	for _, cookie := range strings.Split(header, ";") {
		parts := strings.Split(cookie, "=")
		if strings.Trim(parts[0], " ") == sessionCookie && len(parts) > 1 {
			return parts[1], true
		}
	}
	return "", false
}

// sessionBySearch finds the session by one search for its name, without a copy.
func sessionBySearch(header string) (string, bool) {
	const key = sessionCookie + "="
	for at := 0; ; {
		found := strings.Index(header[at:], key)
		if found < 0 {
			return "", false
		}
		begin := at + found
		at = begin + len(key)
		if before := strings.TrimRight(header[:begin], " "); before != "" && before[len(before)-1] != ';' {
			continue // the end of a longer name
		}
		value, _, _ := strings.Cut(header[at:], ";")
		value, _, _ = strings.Cut(value, "=")
		return value, true
	}
}
