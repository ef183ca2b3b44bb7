{{/* What Ray Serve deploys, as YAML: blockyard.cluster.service takes `args`. */}}
{{- define "blockyard.serveConfig" -}}
{{- $server := .Values.server -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $own := dict
  "model" (include "blockyard.modelId" .)
  "name" (include "blockyard.servedName" .)
  "deployment" (printf "groups-%s" .name)
  "group_resource" (printf "engine-%s" .name)
  "device" .device
  "num_ranks" (int (default 1 .tensorParallel)) -}}
{{- if kindIs "map" .groups -}}
{{- $_ := set $own "min_groups" (int .groups.min) -}}
{{- $_ := set $own "max_groups" (int .groups.max) -}}
{{- $groups := .groups -}}
{{- range $ours, $theirs := dict "queueSeconds" "scale_queue_seconds" "quietSeconds" "scale_quiet_seconds" "idleSeconds" "scale_idle_seconds" -}}
{{- if hasKey $groups $ours }}{{ $_ := set $own $theirs (float64 (get $groups $ours)) }}{{ end -}}
{{- end -}}
{{- else -}}
{{- $_ := set $own "num_groups" (int .groups) -}}
{{- end -}}
{{- $settings := merge (dict) . $.Values.modelDefaults -}}
{{- range $ours, $theirs := dict "dtype" "dtype" "kvDtype" "kv_dtype" "weights" "weights" "cudaGraphs" "cuda_graphs" "blockSize" "block_size" "blocks" "num_blocks" "hostBlocks" "num_host_blocks" "threads" "threads" "maxRunning" "max_running" "maxStepTokens" "max_step_tokens" "maxWaiting" "max_waiting" "preemption" "preemption" "pipelineDepth" "pipeline_depth" "speculate" "speculate" "draftModel" "draft_model" "draftWeights" "draft_weights" "toolCallParser" "tool_call_parser" "reasoningParser" "reasoning_parser" "stallSeconds" "stall_seconds" "maxAdapters" "max_adapters" "maxAdapterRank" "max_adapter_rank" "adaptersRoot" "adapters_root" -}}
{{- if hasKey $settings $ours -}}
{{- $value := get $settings $ours -}}
{{- $_ := set $own $theirs (kindIs "string" $value | ternary $value (int64 (kindIs "string" $value | ternary 0 $value))) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $settings "kvMemory" -}}
{{- $_ := set $own "kv_memory_bytes" (include "blockyard.bytes" $settings.kvMemory | int64) -}}
{{- end -}}
{{- if .adapters }}{{ $_ := set $own "adapters" .adapters }}{{ end -}}
{{- $models = append $models $own -}}
{{- end -}}
{{- $args := dict
  "models" $models
  "grpc_host" "0.0.0.0"
  "grpc_port" (int $server.grpcPort)
  "http_host" "0.0.0.0"
  "http_port" (int $server.httpPort)
  "metrics_host" "0.0.0.0"
  "metrics_port" (int $server.metricsPort)
  "drain_seconds" (int $server.drainSeconds)
  "resume_seconds" (int $server.resumeSeconds)
  "num_ingresses" (int .Values.ingress.replicas)
  "ingress_resource" "ingress"
  "central_resource" "central" -}}
{{- with .Values.apiKeys }}
{{- if .secret }}{{ $_ := set $args "api_keys_file" (printf "/etc/blockyard/%s" .key) }}{{ end -}}
{{- end -}}
{{- with .Values.admin }}
{{- if .enabled }}{{ $_ := set $args "allow_admin" true }}{{ end -}}
{{- if .weightsRoot }}{{ $_ := set $args "weights_root" .weightsRoot }}{{ end -}}
{{- end -}}
{{- with .Values.tls }}
{{- if .secret -}}
{{- $files := dict "certificate" (printf "/etc/blockyard-tls/%s" .certKey) "key" (printf "/etc/blockyard-tls/%s" .keyKey) -}}
{{- if .clients.caSecret }}{{ $_ := set $files "client_ca" (printf "/etc/blockyard-tls-clients/%s" .clients.caKey) }}{{ end -}}
{{- $_ := set $args "tls" $files -}}
{{- end -}}
{{- end -}}
{{- $_ := set $args "logs" (pick .Values.logs "format" "level" "prompts") -}}
{{- if .Values.tracing.endpoint }}{{ $_ := set $args "trace_endpoint" .Values.tracing.endpoint }}{{ end -}}
{{- /* Serve builds the application where this selector points: ingress pods have every model's files. */ -}}
{{- $ingress := dict "num_cpus" 0.1 "resources" (dict "ingress" 1) "label_selector" (dict "blockyard" "ingress") -}}
{{- $application := dict
  "name" "blockyard"
  "import_path" "blockyard.cluster.service:build"
  "route_prefix" (ternary "/" nil .Values.serveProxy.enabled)
  "args" $args
  "deployments" (list (dict "name" "ingress" "ray_actor_options" $ingress)) -}}
{{- $config := dict
  "proxy_location" (ternary "EveryNode" "Disabled" .Values.serveProxy.enabled)
  "logging_config" (dict "encoding" "JSON" "log_level" "INFO" "enable_access_log" false)
  "applications" (list $application) -}}
{{- if .Values.serveProxy.enabled -}}
{{- $servicers := list "blockyard.cluster.grpc_handlers.add_generation_to_server" "blockyard.cluster.grpc_handlers.add_cluster_to_server" "blockyard.cluster.grpc_handlers.add_health_to_server" -}}
{{- $_ := set $config "grpc_options" (dict "port" (int .Values.serveProxy.port) "grpc_servicer_functions" $servicers) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}
