package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestRegistry(t *testing.T) {
	now := time.Unix(0, 0)
	server := httptest.NewServer(newRegistry(15*time.Second, func() time.Time { return now }).handler())
	defer server.Close()
	ask := func(method, path string) string {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	list := func(want string) {
		t.Helper()
		if got := ask(http.MethodGet, "/services/s"); got != want+"\n" {
			t.Errorf("%s, want %s", got, want)
		}
	}
	list("null")
	ask(http.MethodPut, "/services/s/b:2")
	ask(http.MethodPut, "/services/s/a:1")
	ask(http.MethodPut, "/services/other/c:3")
	list(`["a:1","b:2"]`)
	ask(http.MethodDelete, "/services/s/a:1")
	list(`["b:2"]`)
	now = now.Add(10 * time.Second)
	ask(http.MethodPut, "/services/s/d:4")
	now = now.Add(10 * time.Second)
	list(`["d:4"]`) // b:2 was not renewed
}
