{{/* Settings of a model's engine pods, as YAML: the chart's, then its own. */}}
{{- define "blockyard.engine" -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.engine) (deepCopy (default dict .model.engine)) -}}
{{- if eq .model.device "cuda" -}}
{{- $gpu := default dict .model.gpu -}}
{{- $resource := default "nvidia.com/gpu" $gpu.resource -}}
{{- $limits := merge (dict $resource (default 1 .model.tensorParallel | toString)) (dig "resources" "limits" dict $settings) -}}
{{- $_ := set $settings "resources" (merge (dict "limits" $limits) (default dict $settings.resources)) -}}
{{- with $gpu.product -}}
{{- $_ := set $settings "nodeSelector" (merge (dict "nvidia.com/gpu.product" .) (default dict $settings.nodeSelector)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end }}

{{/* One pod of Ray: (dict "root" $ "component" NAME "settings" {} "models" [] "model" NAME) */}}
{{- define "blockyard.pod" -}}
{{- $root := .root -}}
{{- $settings := .settings -}}
{{- $storage := $root.Values.modelStorage -}}
metadata:
  labels:
    {{- /* Not the chart's version: a label that changes makes the operator replace the whole cluster. */}}
    {{- include "blockyard.selector" . | nindent 4 }}
    {{- with merge (dict) (default dict $settings.podLabels) $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with merge (dict) (default dict $settings.podAnnotations) $root.Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "blockyard.serviceAccountName" $root }}
  {{- /* Ray's autoscaler, which the operator puts beside the head, asks Kubernetes for pods. */}}
  automountServiceAccountToken: {{ and (eq .component "head") (ne (include "blockyard.scales" $root) "") }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "blockyard.terminationSeconds" $root }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $placement := pick $settings "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" }}
  {{- range $key, $value := $placement }}
  {{- if $value }}
  {{- toYaml (dict $key $value) | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- if and .models (not $storage.readOnly) }}
  initContainers:
    {{- range $model := .models }}
    {{- range $suffix, $id := dict "" (include "blockyard.modelId" $model) "-draft" (default "/" $model.draftModel) }}
    {{- if not (hasPrefix "/" $id) }}
    - name: fetch-{{ $model.name }}{{ $suffix }}
      image: {{ include "blockyard.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [blockyard, model, fetch, {{ $id | quote }}]
      env:
        {{- include "blockyard.modelEnv" $root | nindent 8 }}
        {{- with $root.Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $root.Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      resources:
        requests: {cpu: 500m, memory: 1Gi}
        limits: {memory: 2Gi}
      volumeMounts:
        {{- include "blockyard.mounts" (dict "root" $root "models" true) | nindent 8 }}
    {{- end }}
    {{- end }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ eq .component "head" | ternary "ray-head" "ray-worker" }}
      image: {{ include "blockyard.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      ports:
        {{- include "blockyard.ports" . | nindent 8 }}
      env:
        {{- include "blockyard.rayEnv" $root | nindent 8 }}
        {{- include "blockyard.modelEnv" $root | nindent 8 }}
        {{- with concat (default list $root.Values.extraEnv) (default list $settings.extraEnv) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $root.Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      resources:
        {{- toYaml $settings.resources | nindent 8 }}
      {{- include "blockyard.probes" . | nindent 6 }}
      lifecycle:
        preStop:
          exec:
            command:
              {{- include "blockyard.preStop" . | nindent 14 }}
      volumeMounts:
        {{- include "blockyard.mounts" (dict "root" $root "models" .models) | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
        {{- if and $root.Values.apiKeys.secret (eq .component "ingress") }}
        - {name: api-keys, mountPath: /etc/blockyard, readOnly: true}
        {{- end }}
        {{- if and $root.Values.tls.secret (eq .component "ingress") }}
        - {name: tls, mountPath: /etc/blockyard-tls, readOnly: true}
        {{- if $root.Values.tls.clients.caSecret }}
        - {name: tls-clients, mountPath: /etc/blockyard-tls-clients, readOnly: true}
        {{- end }}
        {{- end }}
  volumes:
    {{- if and $root.Values.apiKeys.secret (eq .component "ingress") }}
    - name: api-keys
      secret:
        secretName: {{ $root.Values.apiKeys.secret }}
        defaultMode: 0440
        items: [{key: {{ $root.Values.apiKeys.key }}, path: {{ $root.Values.apiKeys.key }}}]
    {{- end }}
    {{- if and $root.Values.tls.secret (eq .component "ingress") }}
    - name: tls
      secret:
        secretName: {{ $root.Values.tls.secret }}
        defaultMode: 0440
        items:
          - {key: {{ $root.Values.tls.certKey }}, path: {{ $root.Values.tls.certKey }}}
          - {key: {{ $root.Values.tls.keyKey }}, path: {{ $root.Values.tls.keyKey }}}
    {{- with $root.Values.tls.clients }}
    {{- if .caSecret }}
    - name: tls-clients
      secret:
        secretName: {{ .caSecret }}
        defaultMode: 0440
        items: [{key: {{ .caKey }}, path: {{ .caKey }}}]
    {{- end }}
    {{- end }}
    {{- end }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $settings.shmSize }}}
    - name: scratch
      emptyDir: {}
    {{- if .models }}
    - name: models
      {{- if eq $storage.type "emptyDir" }}
      emptyDir:
        {{- if $storage.size }}
        sizeLimit: {{ $storage.size }}
        {{- else }} {}
        {{- end }}
      {{- else }}
      persistentVolumeClaim:
        claimName: {{ include "blockyard.claimName" $root }}
        readOnly: {{ $storage.readOnly }}
      {{- end }}
    {{- end }}
    {{- with $root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* The root file system is read only: Ray and the caches of Python libraries write here. */}}
{{- define "blockyard.mounts" -}}
- {name: scratch, mountPath: /tmp, subPath: tmp}
- {name: scratch, mountPath: /home/blockyard, subPath: home}
{{- if .models }}
- name: models
  mountPath: {{ .root.Values.modelStorage.mountPath }}
  readOnly: {{ .root.Values.modelStorage.readOnly }}
{{- end }}
{{- with .root.Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "blockyard.modelEnv" -}}
- {name: HOME, value: /home/blockyard}
- {name: BLOCKYARD_CACHE, value: {{ .Values.modelStorage.mountPath }}}
{{- with .Values.huggingFace }}
{{- if .tokenSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .tokenSecret }}, key: {{ .tokenKey }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "blockyard.rayEnv" -}}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
{{- if not .Values.ray.tokenAuthentication }}
- {name: RAY_AUTH_MODE, value: disabled}
{{- end }}
{{- if and .Values.serveProxy.enabled .Values.serveProxy.haproxy }}
- {name: RAY_SERVE_ENABLE_HA_PROXY, value: "1"}
{{- end }}
{{- end }}

{{- define "blockyard.ports" -}}
- {name: ray-metrics, containerPort: 8080}
{{- if eq .component "head" }}
- {name: gcs-server, containerPort: 6379}
- {name: dashboard, containerPort: 8265}
- {name: client, containerPort: 10001}
{{- end }}
{{- if eq .component "ingress" }}
- {name: grpc, containerPort: {{ .root.Values.server.grpcPort }}}
- {name: http, containerPort: {{ .root.Values.server.httpPort }}}
- {name: metrics, containerPort: {{ .root.Values.server.metricsPort }}}
{{- if .root.Values.serveProxy.enabled }}
- {name: grpc-proxy, containerPort: {{ .root.Values.serveProxy.port }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Ray's processes are alive in every pod; an ingress pod is ready when every model answers. */}}
{{- define "blockyard.probes" -}}
{{- $alive := eq .component "head" | ternary (dict "path" "/api/gcs_healthz" "port" 8265) (dict "path" "/api/local_raylet_healthz" "port" 52365) -}}
{{- $serves := dict "grpc" (dict "port" (int .root.Values.server.grpcPort)) -}}
{{- /* Kubernetes' own gRPC probe speaks no TLS, and its HTTPS probe shows no certificate. */}}
{{- if .root.Values.tls.clients.caSecret }}
{{- $serves = dict "httpGet" (dict "path" "/ready" "port" (int .root.Values.server.metricsPort)) -}}
{{- else if .root.Values.tls.secret }}
{{- $serves = dict "httpGet" (dict "path" "/ready" "port" (int .root.Values.server.httpPort) "scheme" "HTTPS") -}}
{{- end }}
{{- $period := 5 -}}
startupProbe:
  {{- if eq .component "ingress" }}
  {{- toYaml $serves | nindent 2 }}
  {{- else }}
  httpGet: {{ toJson $alive }}
  {{- end }}
  periodSeconds: {{ $period }}
  timeoutSeconds: 5
  failureThreshold: {{ divf (eq .component "ingress" | ternary .root.Values.startup.budgetSeconds .root.Values.startup.raySeconds) $period | ceil }}
livenessProbe:
  httpGet: {{ toJson $alive }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 12
readinessProbe:
  {{- if eq .component "ingress" }}
  {{- toYaml $serves | nindent 2 }}
  {{- else }}
  httpGet: {{ toJson $alive }}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* Requests finish before Ray's processes are told to end. The head stays for the others. */}}
{{- define "blockyard.preStop" -}}
{{- $server := .root.Values.server -}}
{{- if eq .component "head" -}}
- sleep
- {{ add $server.preStopSeconds $server.drainSeconds 10 | quote }}
{{- else -}}
- python
- -m
- blockyard.cluster.deploy.leave_node
- --wait-seconds
- {{ $server.preStopSeconds | quote }}
- --drain-seconds
- {{ add $server.drainSeconds 10 | quote }}
{{- end }}
{{- end }}

{{/* Ray's CPUs are places for actors, not cores: one for each rank, one for all that is small. */}}
{{- define "blockyard.startParams" -}}
num-cpus: {{ .cpus | quote }}
num-gpus: {{ .gpus | quote }}
metrics-export-port: "8080"
object-store-memory: {{ int64 .root.Values.ray.objectStoreBytes | quote }}
resources: {{ printf "'%s'" (toJson (dict .resource 1)) | quote }}
{{- end }}
