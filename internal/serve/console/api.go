package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// answer is what the API answers. What the API sets on the connection, such as deadlines, goes to the client's.
type answer struct {
	client http.ResponseWriter
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *answer) Write(text []byte) (int, error) { return a.body.Write(text) }

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.client }

// get reads the answer of the API to GET.
func (q *request) get(path string, into any) error { return q.call(http.MethodGet, path, nil, into) }

// call sends a request to the API, with a JSON body unless it is nil, and decodes the answer. Errors of the API are a
// *failure.
func (q *request) call(method, path string, body, into any, header ...string) error {
	var text io.Reader = http.NoBody
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode a request to the API: %w", err)
		}
		text = bytes.NewReader(encoded)
		header = append([]string{"Content-Type", "application/json"}, header...)
	}
	return q.send(method, path, text, into, header...)
}

// send is call with a body of any type.
func (q *request) send(method, path string, body io.Reader, into any, header ...string) error {
	r, err := q.apiRequest(method, path, body, header...)
	if err != nil {
		return err
	}
	a := &answer{client: q.w, header: make(http.Header), status: http.StatusOK}
	q.cfg.Access.Serve(a, r, q.caller)
	if a.status >= 300 {
		f := &failure{}
		if err := json.Unmarshal(a.body.Bytes(), f); err != nil {
			return fmt.Errorf("read the answer %d of %s: %w", a.status, path, err)
		}
		return f
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(a.body.Bytes(), into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return nil
}

// pass answers with the answer of the API to GET.
func (q *request) pass(path string) error {
	r, err := q.apiRequest(http.MethodGet, path, http.NoBody)
	if err == nil {
		q.cfg.Access.Serve(q.w, r, q.caller)
	}
	return err
}

func (q *request) apiRequest(method, path string, body io.Reader, header ...string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(q.r.Context(), method, "http://localhost"+path, body)
	if err != nil {
		return nil, fmt.Errorf("ask the API: %w", err)
	}
	r.RemoteAddr = q.r.RemoteAddr // for the record of changes
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r, nil
}
