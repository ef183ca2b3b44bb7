{{/* Bytes of a Kubernetes quantity such as 8Gi, 500M or 1024. */}}
{{- define "blockyard.bytes" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $factors := dict "" 1.0 "k" 1000.0 "M" 1000000.0 "G" 1000000000.0 "T" 1000000000000.0 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- if or (not $number) (not (hasKey $factors $unit)) -}}
{{- fail (printf "%q is no amount of memory; write it like 8Gi or 500M" $text) -}}
{{- end -}}
{{- mulf (float64 $number) (get $factors $unit) | int64 -}}
{{- end }}

{{/* What the schema cannot compare. */}}
{{- define "blockyard.check" -}}
{{- $names := list -}}
{{- $served := list -}}
{{- range .Values.models -}}
{{- $names = append $names .name -}}
{{- $served = append $served (include "blockyard.servedName" .) -}}
{{- if and (hasPrefix "/" (default .name .id)) (not (hasPrefix (printf "%s/" $.Values.modelStorage.mountPath) .id)) -}}
{{- fail (printf "models: %s is at %s, which is not under modelStorage.mountPath (%s)" .name .id $.Values.modelStorage.mountPath) -}}
{{- end -}}
{{- if and (hasPrefix "/" (default .name .id)) (eq $.Values.modelStorage.type "emptyDir") -}}
{{- fail (printf "models: %s is a directory; set modelStorage.type to the claim that holds it" .name) -}}
{{- end -}}
{{- if and .draftModel (hasPrefix "/" .draftModel) (not (hasPrefix (printf "%s/" $.Values.modelStorage.mountPath) .draftModel)) -}}
{{- fail (printf "models: %s has a draftModel at %s, which is not under modelStorage.mountPath (%s)" .name .draftModel $.Values.modelStorage.mountPath) -}}
{{- end -}}
{{- if and .draftModel (hasPrefix "/" .draftModel) (eq $.Values.modelStorage.type "emptyDir") -}}
{{- fail (printf "models: %s has a directory as draftModel; set modelStorage.type to the claim that holds it" .name) -}}
{{- end -}}
{{- if kindIs "map" .groups -}}
{{- if gt (int .groups.min) (int .groups.max) -}}
{{- fail (printf "models: %s has groups from %v to %v; min must not be above max" .name .groups.min .groups.max) -}}
{{- end -}}
{{- end -}}
{{- if and .revision (not (contains "/" (default .name .id))) -}}
{{- fail (printf "models: %s has a revision, but only a hub repository (org/name) has revisions" .name) -}}
{{- end -}}
{{- if and (eq .device "cuda") .weights (ne .weights "auto") -}}
{{- fail (printf "models: %s has weights %s, which is for CPUs, but it runs on a GPU" .name .weights) -}}
{{- end -}}
{{- $settings := merge (dict) . $.Values.modelDefaults -}}
{{- if and (eq .device "cuda") (eq $settings.kvDtype "int8") -}}
{{- fail (printf "models: %s has kvDtype int8, which is for CPUs, but it runs on a GPU" .name) -}}
{{- end -}}
{{- if and (eq .device "cpu") (eq $settings.kvDtype "fp8") -}}
{{- fail (printf "models: %s has kvDtype fp8, which is for GPUs, but its device is cpu" .name) -}}
{{- end -}}
{{- if and (ne $settings.speculate "off") (gt (int $settings.pipelineDepth) 1) -}}
{{- fail (printf "models: %s has speculate %s with pipelineDepth %v; guesses need a depth of 1" .name $settings.speculate $settings.pipelineDepth) -}}
{{- end -}}
{{- if and (eq $settings.speculate "draft") (not $settings.draftModel) -}}
{{- fail (printf "models: %s has speculate draft and no draftModel; name one" .name) -}}
{{- end -}}
{{- if and (ne $settings.speculate "draft") (or $settings.draftModel $settings.draftWeights) -}}
{{- fail (printf "models: %s has a draftModel or draftWeights with speculate %s; say speculate draft" .name $settings.speculate) -}}
{{- end -}}
{{- if and (eq .device "cuda") $settings.draftWeights (ne $settings.draftWeights "auto") -}}
{{- fail (printf "models: %s has draftWeights %s, which is for CPUs, but it runs on a GPU" .name $settings.draftWeights) -}}
{{- end -}}
{{- if and (eq .device "cuda") .threads -}}
{{- fail (printf "models: %s has threads, but it runs on a GPU" .name) -}}
{{- end -}}
{{- if and (ne .device "cuda") .gpu -}}
{{- fail (printf "models: %s has gpu, but its device is cpu" .name) -}}
{{- end -}}
{{- include "blockyard.checkMemory" (dict "place" (printf "engine (%s)" .name) "settings" (fromYaml (include "blockyard.engine" (dict "root" $ "model" .))) "root" $) -}}
{{- end -}}
{{- range list $names $served -}}
{{- if ne (len .) (len (uniq .)) -}}
{{- fail (printf "models: names must differ, these do not: %s" (join ", " .)) -}}
{{- end -}}
{{- end -}}
{{- range list "head" "central" "ingress" -}}
{{- include "blockyard.checkMemory" (dict "place" . "settings" (get $.Values .) "root" $) -}}
{{- end -}}
{{- if and (ne .Values.modelStorage.type "emptyDir") (ne .Values.modelStorage.type "existingClaim") .Values.modelStorage.readOnly -}}
{{- fail "modelStorage.readOnly is for existingClaim: a new claim is empty" -}}
{{- end -}}
{{- if and .Values.admin.enabled (not .Values.apiKeys.secret) -}}
{{- fail "admin.enabled without apiKeys.secret: everybody who reaches the server could change what it serves" -}}
{{- end -}}
{{- with .Values.admin.weightsRoot -}}
{{- if not $.Values.admin.enabled -}}
{{- fail "admin.weightsRoot without admin.enabled: nobody could ask for other weights" -}}
{{- end -}}
{{- if not (hasPrefix (printf "%s/" $.Values.modelStorage.mountPath) .) -}}
{{- fail (printf "admin.weightsRoot is %s, which is not under modelStorage.mountPath (%s)" . $.Values.modelStorage.mountPath) -}}
{{- end -}}
{{- if eq $.Values.modelStorage.type "emptyDir" -}}
{{- fail "admin.weightsRoot is a directory that all pods have; set modelStorage.type to the claim that holds it" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.apiKeys.secret .Values.serveProxy.enabled -}}
{{- fail "apiKeys and serveProxy do not go together: Ray Serve's own proxy checks no keys" -}}
{{- end -}}
{{- if and .Values.tls.secret .Values.serveProxy.enabled -}}
{{- fail "tls and serveProxy do not go together: Ray Serve's own proxy speaks no TLS" -}}
{{- end -}}
{{- $ports := list (int .Values.server.grpcPort) (int .Values.server.httpPort) (int .Values.server.metricsPort) -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "server: grpcPort, httpPort and metricsPort must differ" -}}
{{- end -}}
{{- if and (gt (int .Values.podDisruptionBudget.ingress) 1) (ge (int .Values.podDisruptionBudget.ingress) (int .Values.ingress.replicas)) -}}
{{- fail (printf "podDisruptionBudget.ingress is %v of %v pods; no node could ever be drained" .Values.podDisruptionBudget.ingress .Values.ingress.replicas) -}}
{{- end -}}
{{- end }}

{{/* "true" when the number of some model's groups follows the load, else empty. */}}
{{- define "blockyard.scales" -}}
{{- range .Values.models }}{{ if kindIs "map" .groups }}true{{ end }}{{ end -}}
{{- end }}

{{- define "blockyard.checkMemory" -}}
{{- $shm := include "blockyard.bytes" .settings.shmSize | int64 -}}
{{- $store := int64 .root.Values.ray.objectStoreBytes -}}
{{- if lt $shm $store -}}
{{- fail (printf "%s: shmSize %v is under ray.objectStoreBytes (%d), which lives in it" .place .settings.shmSize $store) -}}
{{- end -}}
{{- $limit := dig "resources" "limits" "memory" "" .settings -}}
{{- if $limit -}}
{{- if ge $shm (include "blockyard.bytes" $limit | int64) -}}
{{- fail (printf "%s: shmSize %v must be under the memory limit %v, which it counts against" .place .settings.shmSize $limit) -}}
{{- end -}}
{{- end -}}
{{- end }}
