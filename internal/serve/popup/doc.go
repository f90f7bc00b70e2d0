// Package popup decides which popup a user gets, stores what each user was shown and did,
// and ensures that concurrent requests of one user never get two popups.
//
// # Flow
//
//	popup.go      Ask reads the user's State, decides, and swaps the State in the Store
//	decide.go     the decision and the State after it: pure functions
//	memory.go     a Store in this process; Redis is another one
//	event_log.go  records the event of a swap in the spool
//
// A swap succeeds only if the state still has the version that was read. A request that
// loses the race decides again. The event of a show, click or dismissal is durable before
// the answer. Click and Dismiss take the signed token of a show and go the same way.
//
//	schema, err := popup.NewSchema(attributes)
//	set, err := popup.NewSet(schema, campaigns)
//	p, err := popup.Open(popup.Config{Store: store, Signer: signer, Log: log}, set)
//	a := p.Attributes()
//	err = a.Add("country", "CN")
//	answer, err := p.Ask(ctx, popup.Key{User: "7", Placement: "home"}, a, now)
//	err = p.Click(ctx, answer.Token, "7", now)
//
// A Set is all campaigns, compiled. Campaigns replaces it when the database has changed.
//
// # Rules
//
// Per user and placement, with campaigns by descending Priority, ascending Order and ID. A
// campaign is finished if it was clicked, dismissed or withheld, or shown as often as its Cap
// allows.
//
//   - Nothing was shown: the first campaign that matches.
//   - Shown, not answered: nothing until the show plus RepeatAfter. Then the same campaign
//     if it still matches and is not finished, otherwise the first that matches and is not.
//   - Clicked or dismissed: nothing, of any campaign, until QuietClick or QuietDismiss has
//     passed. Then the first that matches and is not finished.
//   - None is left: nothing, until there is one.
//   - A draft comes before all others, whatever they say, for its Testers, until it is finished.
//   - Config.Limits forbid shows of anything but drafts.
//
// A campaign matches if it is active, runs (Start <= now < End), the user is in its Rollout,
// and its expression is true. A user of its Holdout to whom it was never shown does not get
// it: it is withheld, without a wait. With Again, a finished campaign starts over that long
// after its last event, and what was withheld is withheld again.
//
// All settings are the current ones. If the set does not have the campaign that was shown
// last, the wait at its last event applies. A time more than an hour in the future is not
// believed: a wait that began then is over, and a campaign with Again that was finished then
// starts over.
//
// # Expressions
//
// Expressions use a subset of expr-lang/expr: and, or, not; ==, !=, <, <=, >, >=; in (a
// list of literals, a range of literal integers, or a list attribute); contains,
// startsWith, endsWith, matches with a literal pattern; + - * / % ** on numbers and -
// between timestamps; cond ? x : y with x and y of one type; ??; nil; and the functions
// date("...") and duration("...") of literals, len, now, days_since, hour, weekday, version,
// lower and in_list. Everything else is refused with its line and column: closures, loops,
// variables, member access and concatenation.
//
// Evaluation does not fail. The result is that of expr's machine, with these additions:
//
//   - An attribute without a value is nil. It equals only nil, so != is true; every other
//     comparison with it is false, and as a condition it is false.
//   - A calculation or a function of a missing value is missing. So is a calculation that
//     divides by zero, overflows 64 bits, or is infinite or not a number; so are a time zone
//     that does not exist and a version that is none.
//
// Attributes.At, For and Lists set what the functions of the clock and in_list read.
//
// # Failures
//
//   - The store does not answer: nothing is shown. With ShowAnyway, the user gets what a new
//     user would, without a token and unrecorded; nothing of a holdout. Clicks get ErrUnavailable.
//   - The event cannot be recorded: the state is put back, and the answer is the same.
//     The event may have been recorded all the same; a click that is sent again has the
//     same Event.ID.
//   - UserRow fails, or a list has not been read yet: campaigns whose targets need it are
//     skipped and named in Answer.Detail. If nothing else is shown, the reason is Unavailable.
//   - A list does not exist: campaigns whose targets name it are for nobody.
//   - A click or dismissal with a forged, expired, late or repeated token, or another
//     user's, gets an error of its own and changes nothing.
//
// The package contains no SQL, no HTTP and no database client.
package popup
