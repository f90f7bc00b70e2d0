package target

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Bounds of a file of requests.
const (
	requestsMax    = 100_000
	requestLineMax = 1 << 20
	bodyFileMax    = 64 << 20
)

// ReadRequests reads a file of requests, one a line:
//
//	[WEIGHT] METHOD PATH [BODY | @FILE]
//
// WEIGHT is a whole number, 1 when left out. PATH begins with / or is a whole
// URL of the target's own host. All behind the path is the body; @FILE reads it
// from a file, relative to the file of requests. Path and body are templates.
// Empty lines and lines that begin with # are passed over. authority is the
// HOST or HOST:PORT that whole URLs must have.
func ReadRequests(path, authority string) ([]HTTPRequest, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open file of requests: %w", err)
	}
	defer file.Close()
	readBody := func(name string) (string, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return ReadBody(name)
	}
	requests, err := parseRequests(file, authority, readBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return requests, nil
}

// ReadBody reads a file that is sent as a body.
func ReadBody(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("open body: %w", err)
	}
	defer file.Close()
	body, err := io.ReadAll(io.LimitReader(file, bodyFileMax+1))
	if err != nil {
		return "", fmt.Errorf("read body: %w", err)
	}
	if len(body) > bodyFileMax {
		return "", fmt.Errorf("body %s is larger than %d bytes", path, bodyFileMax)
	}
	return string(body), nil
}

func parseRequests(r io.Reader, authority string, readBody func(string) (string, error)) ([]HTTPRequest, error) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, requestLineMax)
	var requests []HTTPRequest
	number := 0
	for scanner.Scan() {
		number++
		line := strings.TrimSpace(scanner.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if len(requests) == requestsMax {
			return nil, fmt.Errorf("line %d: more than %d requests", number, requestsMax)
		}
		request, err := parseRequestLine(line, authority, readBody)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		requests = append(requests, request)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", number+1, err)
	}
	if len(requests) == 0 {
		return nil, errors.New("it has no requests")
	}
	return requests, nil
}

func parseRequestLine(line, authority string, readBody func(string) (string, error)) (request HTTPRequest, err error) {
	word, rest := cutWord(line)
	request.Weight = 1
	if weight, err := strconv.Atoi(word); err == nil {
		if weight < 1 || weight > 1_000_000 {
			return request, fmt.Errorf("weight %d is not between 1 and 1000000", weight)
		}
		request.Weight = weight
		word, rest = cutWord(rest)
	}
	request.Method = word
	path, body := cutWord(rest)
	if !isToken(word) || path == "" {
		return request, errors.New("write [WEIGHT] METHOD PATH [BODY | @FILE]")
	}
	if path, err = ownPath(path, authority); err != nil {
		return request, err
	}
	if request.Path, err = ParseTemplate(path); err != nil {
		return request, err
	}
	if name, isFile := strings.CutPrefix(body, "@"); isFile {
		if body, err = readBody(name); err != nil {
			return request, err
		}
	}
	request.Body, err = ParseTemplate(body)
	return request, err
}

// ownPath takes the target's own scheme and host off a URL.
func ownPath(path, authority string) (string, error) {
	if strings.HasPrefix(path, "/") {
		return path, nil
	}
	_, rest, found := strings.Cut(path, "://")
	if !found {
		return "", fmt.Errorf("path %q does not begin with /", path)
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if rest[:end] != authority {
		return "", fmt.Errorf("%s is another host than the target, %s: a run loads one", rest[:end], authority)
	}
	if path = rest[end:]; !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path, nil
}

// Authority returns the HOST or HOST:PORT of a URL, "" when it has none.
func Authority(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

func cutWord(line string) (word, rest string) {
	i := strings.IndexAny(line, " \t")
	if i < 0 {
		return line, ""
	}
	return line[:i], strings.TrimLeft(line[i:], " \t")
}
