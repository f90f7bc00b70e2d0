package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/yaml"
)

// attributeTypes are the attribute types of the popup engine.
const attributeTypes = "text,integer,real,boolean,timestamp,texts"

// popupParams are query parameters with a meaning of their own.
const popupParams = "user,placement,clock_offset,at"

// Limits of popups.max_per.
const (
	capsMax     = 8
	capShowsMax = 20
	capTimeMax  = 10 * 365 * 24 * time.Hour
)

// Limits of popups.lists, those of the popup engine.
const (
	listsMax    = 100
	listNameMax = 64 // characters
)

// Limits of the keys that sign show tokens.
const (
	signingKeyMin = 32 // characters
	signingKeys   = 4
)

// PopupsOpenToOthers reports whether other hosts can reach popups that trust the user named
// in the query.
func (c Config) PopupsOpenToOthers() bool {
	return openToOthers(c.Listen) && c.Popups.Path != "" && c.Popups.Identity.Trust != "jwt"
}

// popups checks the block of popups. Without a path it is not served, and the other keys must
// not be given.
func (v *validator) popups(c Config, paths map[string]string) {
	p := c.Popups
	if p.Path == "" {
		v.unserved(p)
		return
	}
	for _, path := range []string{p.Path, p.Path + "/click", p.Path + "/dismiss", p.Path + "/convert"} {
		v.path("popups.path", path, nil, paths)
	}
	if p.Store == "redis" && len(p.Keys) == 0 {
		v.add("popups.keys", "must be given with store: redis, because replicas need the same key", "")
	}
	if p.StateTTL > 0 && p.StateTTL < time.Hour {
		v.add("popups.state_ttl", "must be at least 1h, or 0s", p.StateTTL.String())
	}
	if len(p.Keys) > signingKeys {
		v.add("popups.keys", fmt.Sprintf("must be at most %d keys", signingKeys), "")
	}
	for i, key := range p.Keys {
		if len(key.Reveal()) < signingKeyMin {
			v.add(yaml.Index("popups.keys", i), fmt.Sprintf("must have at least %d characters, as from openssl rand -hex 32", signingKeyMin), "")
		}
	}
	if !isPlain(p.RedisPrefix) {
		v.add("popups.redis_prefix", plainRule, p.RedisPrefix)
	}
	if keep := time.Duration(p.EventsDays) * 24 * time.Hour; keep > 0 && keep < max(p.ConvertWithin, p.TokenTTL)+24*time.Hour {
		v.add("popups.events_days", "must be at least a day longer than convert_within and token_ttl, because what is repeated is "+
			"recognized by the event, or 0", strconv.Itoa(p.EventsDays))
	}
	v.caps("popups.max_per", p.MaxPer)
	v.names("popups.placements", p.Placements)
	v.attributes("popups.attributes", p.Attributes)
	v.lists("popups.lists", p.Lists)
	if p.AttributesSQL != "" && len(p.Attributes) == 0 {
		v.add("popups.attributes_sql", "requires attributes for its columns", "")
	}
	v.identity(c, "popups.identity", p.Identity)
}

// lists checks the names of lists and that they have statements.
func (v *validator) lists(at string, lists Statements) {
	if len(lists) > listsMax {
		v.add(at, fmt.Sprintf("must be at most %d lists", listsMax), "")
	}
	for _, one := range lists {
		path := yaml.Join(at, yaml.Printable(one.Name))
		if !isName(one.Name, listNameMax) {
			v.add(path, fmt.Sprintf("must have a name of 1 to %d lower-case letters, digits and -, without - at the start", listNameMax), "")
		}
		if strings.TrimSpace(one.SQL) == "" {
			v.add(path, "must be one SELECT of the users' ids", "")
		}
	}
}

// caps checks limits of shows.
func (v *validator) caps(at string, caps Caps) {
	if len(caps) > capsMax {
		v.add(at, fmt.Sprintf("must be at most %d limits", capsMax), "")
	}
	for i, one := range caps {
		path := yaml.Join(at, shortDuration(one.Within))
		switch {
		case one.Within < time.Second || one.Within > capTimeMax:
			v.add(path, "must stand behind a duration of 1s to 87600h", "")
		case slices.ContainsFunc(caps[:i], func(other Cap) bool { return other.Within == one.Within }):
			v.add(path, "must not be repeated", "")
		}
		if one.Shows < 1 || one.Shows > capShowsMax {
			v.add(path, fmt.Sprintf("must be from 1 to %d", capShowsMax), strconv.Itoa(one.Shows))
		}
	}
}

// unserved rejects keys of a block without a path.
func (v *validator) unserved(p Popups) {
	given := len(p.Attributes) > 0 || p.AttributesSQL != "" || len(p.Keys) > 0 || len(p.Placements) > 0 || p.Database != "" ||
		p.Store != Defaults[Popups]().Store || p.Identity.Trust == "jwt" || len(p.MaxPer) > 0 || len(p.Lists) > 0
	if given {
		v.add("popups.path", "must be given, as /popup", "")
	}
}

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)
	headerPattern = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
)

// plainRule is the rule of isPlain.
const plainRule = "must be 1 to 32 lower-case letters, digits and -, without - at the start"

func isPlain(name string) bool { return isName(name, 32) }

func isName(name string, longest int) bool {
	return len(name) <= longest && namePattern.MatchString(name)
}

// names checks the names of placements.
func (v *validator) names(at string, names []string) {
	for i, name := range names {
		switch {
		case !isPlain(name):
			v.add(yaml.Index(at, i), plainRule, name)
		case slices.Contains(names[:i], name):
			v.add(yaml.Index(at, i), "must not be repeated", name)
		}
	}
}

// attributes checks types and reserved names. The popup engine rejects words that have a
// meaning in expressions.
func (v *validator) attributes(at string, attributes Types) {
	for _, a := range attributes {
		path := yaml.Join(at, yaml.Printable(a.Name))
		if slices.Contains(strings.Split(popupParams, ","), a.Name) {
			v.add(path, "must have another name: "+strings.ReplaceAll(popupParams, ",", ", ")+" are reserved", "")
		}
		if !slices.Contains(strings.Split(attributeTypes, ","), a.Type) {
			v.add(path, "must be "+orList(attributeTypes), a.Type)
		}
	}
}

func (v *validator) identity(c Config, at string, d Identity) {
	if d.Trust != "jwt" {
		return
	}
	v.required(c, yaml.Join(at, "trust"), d.Trust, true, "")
	if !headerPattern.MatchString(d.Header) {
		v.add(yaml.Join(at, "header"), "must be the name of a header", d.Header)
	}
	if strings.TrimSpace(d.Claim) == "" {
		v.add(yaml.Join(at, "claim"), "must name a claim, as sub", "")
	}
}
