package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// expand replaces each ${NAME} by the variable of that name, and $${ by ${. It
// does not look into what it put in. Its errors name the variable only.
func expand(text string, env func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(text, "${")
		if i < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		if i > 0 && text[i-1] == '$' {
			b.WriteString(text[:i-1] + "${")
			text = text[i+2:]
			continue
		}
		b.WriteString(text[:i])
		name, rest, found := strings.Cut(text[i+2:], "}")
		if !found || !isIdentifier(name) {
			return "", errors.New("${ begins the name of an environment variable, as ${NAME}; write $${ for ${ itself")
		}
		value, set := env(name)
		if !set {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		b.WriteString(value)
		text = rest
	}
}

// resolve returns the secret that text gives or, as file:PATH, points to. Its
// errors quote neither.
func resolve(text string, readFile func(string) ([]byte, error)) (Secret, error) {
	path, isFile := strings.CutPrefix(text, "file:")
	if !isFile {
		if strings.Contains(text, hidden) {
			return "", errors.New("holds ***, which stands for a secret that was left out; write the secret, ${NAME} or file:PATH")
		}
		return Secret(text), nil
	}
	content, err := readFile(path)
	if err != nil {
		var pathError *fs.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err // the path is in the file already, or came from the environment
		} else {
			err = errors.New("it cannot be opened")
		}
		return "", fmt.Errorf("the file behind file: cannot be read: %w", err)
	}
	secret := strings.TrimSpace(string(content))
	if secret == "" {
		return "", errors.New("the file behind file: is empty")
	}
	return Secret(secret), nil
}

// isIdentifier says whether s is a letter or _, then letters, digits and _.
func isIdentifier(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
