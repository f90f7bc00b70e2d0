package result

import (
	"net/url"
	"regexp"
	"strings"
)

// redacted replaces a secret.
const redacted = "xxxxx"

// Patterns of secrets on a command line. They match too much rather than too little.
var (
	secretName = regexp.MustCompile(`(?i)pass(word|wd|phrase)?$|^pwd$|token|secret|api[-_]?key|access[-_]?key|` +
		`authori[sz]ation|cookie|credential|signature|^auth$|^sig$|^key$`)
	urlPassword  = regexp.MustCompile(`//([^/@:\s]*):[^@\s]*@`)               // in a URL, even an invalid one
	dsnPassword  = regexp.MustCompile(`([^/@:=\s]+):[^@\s]*@(tcp|unix|/|\()`) // in a MySQL DSN
	assignment   = regexp.MustCompile(`([A-Za-z0-9_-]+)=('[^']*'|"[^"]*"|[^\s&;]+)`)
	fieldName    = regexp.MustCompile(`([A-Za-z0-9_-]+)"?\s*:\s*`) // in a header or JSON object
	redisAuth    = regexp.MustCompile(`(?i)\bauth\s+\S.*`)
	flagAndValue = regexp.MustCompile(`(?s)^(--?[A-Za-z0-9-]+)=(.*)$`)
)

// RedactVariable is the environment variable with further secrets as a JSON list: an experiment passes those that its load must
// not record.
const RedactVariable = "SPILLWAY_REDACT"

// knownSecrets are secrets to remove from whatever has them, the longest first.
type knownSecrets []string

func (k knownSecrets) hide(text string) string {
	for _, value := range k {
		text = strings.ReplaceAll(text, value, redacted)
	}
	return text
}

// RedactURL returns the target with password and secret parameters replaced.
func RedactURL(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.Scheme == "" {
		return redactText(target)
	}
	pairs := strings.Split(u.RawQuery, "&")
	for i, pair := range pairs {
		if name, _, ok := strings.Cut(pair, "="); ok && secretName.MatchString(name) {
			pairs[i] = name + "=" + redacted
		}
	}
	u.RawQuery = strings.Join(pairs, "&")
	return u.Redacted()
}

// RedactArgs returns the command line with secrets replaced: passwords in URLs and DSNs, and values of flags, headers and
// parameters with a secret name.
func RedactArgs(args []string) []string {
	clean := make([]string, len(args))
	secretNext := false
	for i, arg := range args {
		pair := flagAndValue.FindStringSubmatch(arg)
		isFlag := strings.HasPrefix(arg, "-")
		switch {
		case secretNext && !isFlag:
			clean[i] = redacted
		case pair != nil && secretName.MatchString(pair[1]):
			clean[i] = pair[1] + "=" + redacted
		case pair != nil:
			clean[i] = pair[1] + "=" + redactText(pair[2])
		default:
			clean[i] = redactText(arg)
		}
		secretNext = isFlag && pair == nil && secretName.MatchString(strings.TrimLeft(arg, "-"))
	}
	return clean
}

func redactText(text string) string {
	if u, err := url.Parse(text); err == nil && u.Scheme != "" && u.Host != "" {
		return RedactURL(text)
	}
	text = urlPassword.ReplaceAllString(text, "//$1:"+redacted+"@")
	text = dsnPassword.ReplaceAllString(text, "$1:"+redacted+"@$2")
	text = redisAuth.ReplaceAllString(text, "AUTH "+redacted)
	text = assignment.ReplaceAllStringFunc(text, func(match string) string {
		if name, _, _ := strings.Cut(match, "="); secretName.MatchString(name) {
			return name + "=" + redacted
		}
		return match
	})
	for _, at := range fieldName.FindAllStringSubmatchIndex(text, -1) {
		if secretName.MatchString(text[at[2]:at[3]]) {
			return text[:at[1]] + redacted // a header's value may contain anything
		}
	}
	return text
}
