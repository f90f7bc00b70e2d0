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
	fileMax        = 64 << 20 // bytes of a body or another file that is read as a whole
)

// ReadRequests reads a file with one request per line:
//
//	[name=NAME] [WEIGHT] METHOD PATH [BODY | @FILE]
//
// NAME is the request's name in reports, by default its method and path. WEIGHT is an integer; the default is 1. PATH begins
// with / or is a complete URL of the target. The rest of the line is the body; @FILE reads it from a file, relative to the
// requests file. Path and body are templates. Empty lines and lines that begin with # are skipped. authority is the HOST or
// HOST:PORT that complete URLs must have.
func ReadRequests(path, authority string) ([]HTTPRequest, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open requests file: %w", err)
	}
	defer file.Close()
	requests, err := parseRequests(file, authority, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return requests, nil
}

// ReadFile reads a file that a user names. It must not have more than 64 MiB.
func ReadFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, fileMax+1))
	if err == nil && len(text) > fileMax {
		err = fmt.Errorf("%s is larger than %d bytes", path, fileMax)
	}
	return text, err
}

// Within returns the path of a file whose name may be relative to dir.
func Within(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// parseRequests parses the lines. The files of bodies are relative to dir.
func parseRequests(r io.Reader, authority, dir string) ([]HTTPRequest, error) {
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
		request, err := parseRequestLine(line, authority, dir)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		requests = append(requests, request)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", number+1, err)
	}
	if len(requests) == 0 {
		return nil, errors.New("the file contains no requests")
	}
	return requests, nil
}

func parseRequestLine(line, authority, dir string) (request HTTPRequest, err error) {
	request.Name, line, err = cutName(line)
	if err != nil {
		return request, err
	}
	word, rest := cutWord(line)
	request.Weight = 1
	if weight, err := strconv.Atoi(word); err == nil {
		if weight < 1 || weight > 1_000_000 {
			return request, fmt.Errorf("weight %d must be between 1 and 1000000", weight)
		}
		request.Weight = weight
		word, rest = cutWord(rest)
	}
	request.Method = word
	path, body := cutWord(rest)
	if !isToken(word) || path == "" {
		return request, errors.New("write [name=NAME] [WEIGHT] METHOD PATH [BODY | @FILE]")
	}
	if path, err = ownPath(path, authority); err != nil {
		return request, err
	}
	if request.Path, err = ParseTemplate(path); err != nil {
		return request, err
	}
	if name, isFile := strings.CutPrefix(body, "@"); isFile {
		text, err := ReadFile(Within(dir, name))
		if err != nil {
			return request, fmt.Errorf("body: %w", err)
		}
		body = string(text)
	}
	request.Body, err = ParseTemplate(body)
	return request, err
}

// ownPath returns the path of a URL, which must have the target's host.
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
		return "", fmt.Errorf("%s is not the target host %s; a run loads one host", rest[:end], authority)
	}
	if path = rest[end:]; !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path, nil
}

// Authority returns the HOST or HOST:PORT of a URL, or "" if it has none.
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
