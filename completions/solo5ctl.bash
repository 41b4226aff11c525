# bash completion for solo5ctl(1), without bash-completion; names come from `solo5ctl ps -q` and `network ls -q`.

# What follows from the parser: `make tables` writes it.
# tables: options
_solo5ctl_verbs() { # VERB
    case $1 in
        "") echo "run ps inspect update rollback export logs stop restart kill rm wait stats metrics sleep wake freeze thaw image disk network doctor gc" ;;
        "disk") echo "create ls inspect resize rm import export snapshot restore" ;;
        "network") echo "ls inspect repairs" ;;
    esac
}

_solo5ctl_options() { # VERB; those that take a value end with "="
    case $1 in
        "") echo "-h --help --version --no-color -H= --host=" ;;
        "run") echo "-h --help --name= -d --detach --rm --replace --scope --dry-run --declare= --verbatim= --tender= -m= \
            --memory= --memory-max= --cpus= --cpu-weight= --net= --network= --network-namespace= -p= --publish= \
            --egress= --rate= --dns= --dns-search= --ntp= --hostname= --add-host= --idle= --idle-action= \
            --block= --label= --log-field= --property= --json --no-color" ;;
        "ps") echo "-h --help -a --all -q --quiet --json --no-color" ;;
        "inspect") echo "-h --help --json --no-color" ;;
        "update") echo "-h --help --ready= --timeout= --drain= --watch= --pause --no-block --no-color" ;;
        "rollback") echo "-h --help --ready= --timeout= --drain= --watch= --pause --no-block --no-color" ;;
        "export") echo "-h --help --no-color" ;;
        "logs") echo "-h --help -f --follow -n= --tail= -t --timestamps --json --no-color" ;;
        "stop") echo "-h --help -t= --time= -s= --signal= --no-color" ;;
        "restart") echo "-h --help --no-color" ;;
        "kill") echo "-h --help -s= --signal= --no-color" ;;
        "rm") echo "-h --help -f --force --no-color" ;;
        "wait") echo "-h --help --json --no-color" ;;
        "stats") echo "-h --help --no-stream -i= --interval= -s= --sort= -w --wide --json --no-color" ;;
        "metrics") echo "-h --help --textfile= --no-color" ;;
        "sleep") echo "-h --help --no-color" ;;
        "wake") echo "-h --help --no-color" ;;
        "freeze") echo "-h --help --no-color" ;;
        "thaw") echo "-h --help --no-color" ;;
        "image") echo "-h --help --json --no-color" ;;
        "disk") echo "-h --help" ;;
        "disk create") echo "-h --help --json --no-color --preallocate" ;;
        "disk ls") echo "-h --help --json --no-color -q --quiet --snapshots" ;;
        "disk inspect") echo "-h --help --json --no-color" ;;
        "disk resize") echo "-h --help --json --no-color --shrink" ;;
        "disk rm") echo "-h --help --json --no-color --snapshots" ;;
        "disk import") echo "-h --help --json --no-color" ;;
        "disk export") echo "-h --help --json --no-color" ;;
        "disk snapshot") echo "-h --help --json --no-color --as= --copy" ;;
        "disk restore") echo "-h --help --json --no-color" ;;
        "network") echo "-h --help" ;;
        "network ls") echo "-h --help --json --no-color -q --quiet" ;;
        "network inspect") echo "-h --help --json --no-color" ;;
        "network repairs") echo "-h --help --json --no-color" ;;
        "doctor") echo "-h --help --json --no-color" ;;
        "gc") echo "-h --help --dry-run --json --no-color" ;;
    esac
}
# end

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
    if [[ $verb && index+1 -lt COMP_CWORD && " $(_solo5ctl_verbs "$verb") " == *" ${COMP_WORDS[index + 1]} "* ]]; then
        verb="$verb ${COMP_WORDS[++index]}"
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
        "" | disk | network) _solo5ctl_words "$(_solo5ctl_verbs "$verb")" "$current" ;;
        stop | restart | kill | sleep | wake | freeze | thaw | stats | export | update | rollback) _solo5ctl_words "$(solo5ctl ps -q 2>/dev/null)" "$current" ;;
        run | image) _solo5ctl_files "$current" ;;
        rm | inspect | logs | wait) _solo5ctl_words "$(solo5ctl ps -a -q 2>/dev/null)" "$current" ;;
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
        "network inspect")
            _solo5ctl_words "$(solo5ctl network ls -q 2>/dev/null)" "$current"
            ;;
    esac
}

complete -F _solo5ctl solo5ctl
