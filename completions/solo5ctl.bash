# bash completion for solo5ctl(1), without bash-completion; names come from `solo5ctl ps -q` and `network ls -q`.

_solo5ctl_verbs="run ps inspect update rollback export logs stop restart kill rm wait stats metrics sleep wake freeze thaw image disk network doctor gc"

# The options of one verb; those that take a value end with "=".
_solo5ctl_options() {
    case $1 in
        "") echo "--help --version --no-color --host= -h -H=" ;;
        run)
            echo "--help --name= --detach --rm --replace --scope --dry-run --declare= --tender= --property= --label= --log-field=" \
                "--memory= --memory-max= --cpus= --cpu-weight= --net= --network= --network-namespace= --publish= --egress= --rate= --verbatim= --dns= --dns-search=" \
                "--ntp= --hostname= --add-host= --idle= --idle-action= --block= --json --no-color" \
                "-h -d -m= -p="
            ;;
        ps) echo "--help --all --quiet --json --no-color -h -a -q" ;;
        inspect | wait | image | doctor | "network inspect" | "network repairs") echo "--help --json --no-color -h" ;;
        logs) echo "--help --follow --tail= --timestamps --json --no-color -h -f -n= -t" ;;
        stop) echo "--help --time= --signal= --no-color -h -t= -s=" ;;
        kill) echo "--help --signal= --no-color -h -s=" ;;
        rm) echo "--help --force --no-color -h -f" ;;
        stats) echo "--help --no-stream --interval= --sort= --wide --json --no-color -h -i= -s= -w" ;;
        metrics) echo "--help --textfile= --no-color -h" ;;
        update | rollback) echo "--ready= --timeout= --drain= --watch= --pause --no-block --help --no-color -h" ;;
        export | restart | sleep | wake | freeze | thaw) echo "--help --no-color -h" ;;
        disk) echo "--help -h" ;;
        "disk ls") echo "--help --quiet --snapshots --json --no-color -h -q" ;;
        "disk create") echo "--help --preallocate --json --no-color -h" ;;
        "disk resize") echo "--help --shrink --json --no-color -h" ;;
        "disk rm") echo "--help --snapshots --json --no-color -h" ;;
        "disk snapshot") echo "--help --as= --copy --json --no-color -h" ;;
        "disk inspect" | "disk import" | "disk export" | "disk restore") echo "--help --json --no-color -h" ;;
        network) echo "--help -h" ;;
        "network ls") echo "--help --quiet --json --no-color -h -q" ;;
        gc) echo "--help --dry-run --json --no-color -h" ;;
    esac
}

_solo5ctl_takes_value() { # VERB OPTION
    [[ " $(_solo5ctl_options "$1") " == *" $2= "* ]]
}

# Counts the words behind the verb that are neither options nor their values.
_solo5ctl_positionals() { # VERB FIRST
    local index count=0
    for ((index = $2; index < COMP_CWORD; index++)); do
        if [[ ${COMP_WORDS[index]} == -* ]]; then
            _solo5ctl_takes_value "$1" "${COMP_WORDS[index]}" && ((index++))
            # bash splits words at "=" and ":" (COMP_WORDBREAKS): skip all parts of one value
            while [[ ${COMP_WORDS[index + 1]-} == [=:]* && index+1 -lt COMP_CWORD ]]; do ((index += 2)); done
        else
            ((count++))
        fi
    done
    echo "$count"
}

_solo5ctl_words() { # WORDS CURRENT
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
}

_solo5ctl_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$1")
}

_solo5ctl_value() { # OPTION CURRENT
    case $1 in
        --tender) _solo5ctl_words "hvt spt" "$2" ;;
        --idle-action) _solo5ctl_words "sleep stop" "$2" ;;
        --textfile) _solo5ctl_files "$2" ;;
        --sort) _solo5ctl_words "name cpu memory net block" "$2" ;;
        --signal | -s) _solo5ctl_words "INT TERM${3:+ $3}" "$2" ;;
        --property)
            compopt -o nospace 2>/dev/null
            _solo5ctl_words "AllowedCPUs= CPUQuota= CPUWeight= IOWeight= LimitNOFILE= MemoryHigh= MemoryLow= \
                MemoryMin= Nice= OOMScoreAdjust= RuntimeMaxSec= Slice= SystemCallFilter= TasksMax= TimeoutStopSec=" "$2"
            ;;
        --memory | -m) _solo5ctl_words "32M 64M 128M 256M 512M 1G" "$2" ;;
    esac
}

_solo5ctl() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} verb="" index
    COMPREPLY=()
    for ((index = 1; index < COMP_CWORD; index++)); do
        case ${COMP_WORDS[index]} in
            -H | --host)
                ((index++))
                # bash splits "--host=HOST" and "HOST:PORT" into several words
                [[ ${COMP_WORDS[index]-} == = ]] && ((index++))
                [[ ${COMP_WORDS[index + 1]-} == : ]] && ((index += 2))
                ;;
            -*) ;;
            *)
                verb=${COMP_WORDS[index]}
                break
                ;;
        esac
    done
    if [[ $verb == disk ]]; then
        case ${COMP_WORDS[index + 1]-} in
            create | ls | inspect | resize | rm | import | export | snapshot | restore)
                ((index + 1 < COMP_CWORD)) && verb="disk ${COMP_WORDS[++index]}"
                ;;
        esac
    fi
    if [[ $verb == network ]]; then
        case ${COMP_WORDS[index + 1]-} in
            ls | inspect | repairs) ((index + 1 < COMP_CWORD)) && verb="network ${COMP_WORDS[++index]}" ;;
        esac
    fi

    # NAME=VALUE: bash has split it into three words.
    if [[ $verb == run && ($current == = || $previous == =) ]]; then
        local back=3
        [[ $current == = ]] && back=2 current=""
        case ${COMP_WORDS[COMP_CWORD - back]-} in
            --net | --network) _solo5ctl_words "$(solo5ctl network ls -q 2>/dev/null)" "$current" ;;
            --block) _solo5ctl_files "$current" ;;
        esac
        return
    fi
    if _solo5ctl_takes_value "$verb" "$previous"; then
        local more=""
        [[ $verb == kill ]] && more=KILL
        _solo5ctl_value "$previous" "$current" "$more"
        return
    fi
    if [[ $verb == run ]] && (($(_solo5ctl_positionals "$verb" $((index + 1))) > 0)); then
        _solo5ctl_files "$current" # an argument of the guest
        return
    fi
    if [[ $current == -* ]]; then
        local options
        options=$(_solo5ctl_options "$verb")
        _solo5ctl_words "${options//=/}" "$current"
        return
    fi
    case $verb in
        "") _solo5ctl_words "$_solo5ctl_verbs" "$current" ;;
        stop | restart | kill | sleep | wake | freeze | thaw | stats | export | update | rollback) _solo5ctl_words "$(solo5ctl ps -q 2>/dev/null)" "$current" ;;
        run | image) _solo5ctl_files "$current" ;;
        rm | inspect | logs | wait) _solo5ctl_words "$(solo5ctl ps -a -q 2>/dev/null)" "$current" ;;
        disk) _solo5ctl_words "create ls inspect resize rm import export snapshot restore" "$current" ;;
        "disk import")
            (($(_solo5ctl_positionals "$verb" $((index + 1))) > 0)) && _solo5ctl_files "$current"
            ;;
        "disk rm" | "disk export")
            if [[ $verb == "disk export" ]] && (($(_solo5ctl_positionals "$verb" $((index + 1))) > 0)); then
                _solo5ctl_files "$current"
                return
            fi
            _solo5ctl_words "$(solo5ctl disk ls -q 2>/dev/null) $(solo5ctl disk ls --snapshots -q 2>/dev/null)" "$current"
            ;;
        "disk restore")
            if (($(_solo5ctl_positionals "$verb" $((index + 1))) > 0)); then
                _solo5ctl_words "$(solo5ctl disk ls --snapshots -q 2>/dev/null | sed -n "s/^$previous@//p")" "$current"
            else
                _solo5ctl_words "$(solo5ctl disk ls -q 2>/dev/null)" "$current"
            fi
            ;;
        "disk inspect")
            if [[ $current == */* ]]; then
                _solo5ctl_files "$current"
                return
            fi
            _solo5ctl_words "$(solo5ctl disk ls -q 2>/dev/null)" "$current"
            ;;
        "disk resize" | "disk snapshot")
            _solo5ctl_words "$(solo5ctl disk ls -q 2>/dev/null)" "$current"
            ;;
        network) _solo5ctl_words "ls inspect repairs" "$current" ;;
        "network inspect")
            _solo5ctl_words "$(solo5ctl network ls -q 2>/dev/null)" "$current"
            ;;
    esac
}

complete -F _solo5ctl solo5ctl
