package admin

import (
	_ "embed" // the document is a file
	"net/http"
)

// openAPI describes the campaign API.
//
//go:embed openapi.json
var openAPI string

func showOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte(openAPI)) // the client is gone if it fails
}
