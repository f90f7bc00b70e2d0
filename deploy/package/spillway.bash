# Completion of spillway for bash. Generated: go test ./cmd/spillway -run PackageFiles -update
_spillway() {
	local current=${COMP_WORDS[COMP_CWORD]} previous= command= word words=
	((COMP_CWORD == 0)) || previous=${COMP_WORDS[COMP_CWORD - 1]}
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case "$command $word" in
		" serve") command="serve" ;;
		" ready") command="ready" ;;
		" seed") command="seed" ;;
		"seed freight") command="seed freight" ;;
		"seed games") command="seed games" ;;
		" spool") command="spool" ;;
		"spool status") command="spool status" ;;
		"spool export") command="spool export" ;;
		"spool retry") command="spool retry" ;;
		"spool discard") command="spool discard" ;;
		"spool move") command="spool move" ;;
		"spool repair") command="spool repair" ;;
		" popups") command="popups" ;;
		"popups forget") command="popups forget" ;;
		" config") command="config" ;;
		"config check") command="config check" ;;
		"config print") command="config print" ;;
		"config reload") command="config reload" ;;
		"config schema") command="config schema" ;;
		" grants") command="grants" ;;
		" load") command="load" ;;
		" peak") command="peak" ;;
		" experiment") command="experiment" ;;
		" watch") command="watch" ;;
		" plan") command="plan" ;;
		" report") command="report" ;;
		" diagnose") command="diagnose" ;;
		" doctor") command="doctor" ;;
		" version") command="version" ;;
		esac
	done
	case "$command $previous" in
	"load --arrival") words="constant poisson " ;;
	"peak --arrival") words="constant poisson " ;;
	"report --format") words="text markdown json csv csv-seconds bench html junit summary " ;;
	esac
	if [ -z "$words" ]; then
		case $command in
		"") words="serve ready seed spool popups config grants load peak experiment watch plan report diagnose doctor version --version --help" ;;
		"serve") words="--listen= --admin= --database= --redis= --data= --strict --help" ;;
		"ready") words="--admin= --help" ;;
		"seed") words="freight games --help" ;;
		"seed freight") words="--database= --users= --days= --per-day= --random-seed= --replace --help" ;;
		"seed games") words="--database= --apps= --records= --index= --random-seed= --replace --help" ;;
		"spool") words="status export retry discard move repair --help" ;;
		"spool status") words="--config= --data= --admin= --popups --json --help" ;;
		"spool export") words="--config= --data= --admin= --popups --stream= --reason= --dead --help" ;;
		"spool retry") words="--config= --data= --admin= --popups --stream= --reason= --in-doubt --help" ;;
		"spool discard") words="--config= --data= --admin= --popups --stream= --reason= --yes --help" ;;
		"spool move") words="--config= --data= --admin= --popups --help" ;;
		"spool repair") words="--config= --data= --admin= --popups --yes --help" ;;
		"popups") words="forget --help" ;;
		"popups forget") words="--config= --admin= --help" ;;
		"config") words="check print reload schema --help" ;;
		"config check") words="--no-env --help" ;;
		"config print") words="--help" ;;
		"config reload") words="--admin= --help" ;;
		"config schema") words="--help" ;;
		"grants") words="--role= --database= --help" ;;
		"load") words="--rate= --duration= --requests= --warmup= --arrival= --connections= --per-connection= --timeout= --backlog= --workers= --source= --seed= --method= --header= --header-file= --body= --body-file= --requests-file= --flow= --check= --socket= --http2 --streams= --grpc= --proto= --insecure --cacert= --cert= --key= --sql= --param= --command= --slo= --abort= --out= --json --label= --run= --report-interval= --allow= --part= --start-at= --pin --awake --watch= --watch-db= --watch-from= --watch-token= --live --metrics= --help" ;;
		"peak") words="--slo= --warmup= --max-time= --precision= --start= --max= --knob= --arrival= --connections= --per-connection= --timeout= --backlog= --workers= --source= --seed= --method= --header= --header-file= --body= --body-file= --requests-file= --flow= --check= --socket= --http2 --streams= --grpc= --proto= --insecure --cacert= --cert= --key= --watch= --watch-db= --watch-from= --watch-token= --sql= --param= --command= --out= --json --label= --allow= --live --metrics= --pin --awake --help" ;;
		"experiment") words="--check --quick --only= --seed= --out= --resume= --data= --install --json --help" ;;
		"watch") words="--watch= --watch-db= --watch-from= --watch-token= --duration= --out= --label= --json --report-interval= --listen= --token= --help" ;;
		"plan") words="--from= --variant= --rate= --hosts= --slo= --headroom= --connections= --cpus= --shared= --json --help" ;;
		"report") words="--format= --out= --merge --against= --fail-if= --help" ;;
		"diagnose") words="--passing= --failing= --json --help" ;;
		"doctor") words="--for= --target= --database= --query= --param= --measure --copy-rows= --timeout= --json --help" ;;
		"version") words="--help" ;;
		esac
	fi
	compopt -o nospace 2>/dev/null
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
	((${#COMPREPLY[@]} != 1)) || [[ ${COMPREPLY[0]} == *= ]] || compopt +o nospace 2>/dev/null
}
complete -o default -F _spillway spillway
