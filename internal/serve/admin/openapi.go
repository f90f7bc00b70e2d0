package admin

import (
	_ "embed" // openapi.json
	"encoding/json"
	"net/http"
	"strings"

	"spillway/internal/serve/param"
)

// openAPI describes the listener with popups.
//
//go:embed openapi.json
var openAPI []byte

// document returns what describes the listener: without popups, their paths are missing, and
// with popups, their placements are listed.
func (s *Server) document() []byte {
	var all map[string]any
	if err := json.Unmarshal(openAPI, &all); err != nil {
		panic("bug: openapi.json: " + err.Error())
	}
	paths := all["paths"].(map[string]any)
	if p := s.cfg.Popups; p != nil {
		parameters := all["components"].(map[string]any)["schemas"].(map[string]any)
		parameters["Placement"].(map[string]any)["enum"] = p.Placements
		parameters["User"] = userSchema(p.User)
	} else {
		for path := range paths {
			if strings.HasPrefix(path, "/popups/") {
				delete(paths, path)
			}
		}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		panic("bug: openapi.json: " + err.Error())
	}
	return append(text, '\n')
}

// userSchema returns the schema of a user's id.
func userSchema(t param.Type) map[string]any {
	switch t {
	case param.Integer:
		return map[string]any{"type": "integer", "format": "int64"}
	case param.UUID:
		return map[string]any{"type": "string", "format": "uuid"}
	default:
		return map[string]any{"type": "string", "minLength": 1}
	}
}

func (s *Server) showOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(s.document()) // if it fails, the client has left
}
