{{- define "blockyard.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* KubeRay adds to this name, so it stays well under 63 characters. */}}
{{- define "blockyard.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "blockyard.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "blockyard.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* The operator puts app.kubernetes.io labels of its own on pods, so pods are selected by these. */}}
{{- define "blockyard.selector" -}}
blockyard/release: {{ .root.Release.Name }}
{{- with .component }}
blockyard/component: {{ . }}
{{- end }}
{{- with .model }}
blockyard/model: {{ . }}
{{- end }}
{{- end }}

{{- define "blockyard.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "blockyard.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* metadata of an object: (dict "root" $ "name" NAME "labels" {} "annotations" {}) */}}
{{- define "blockyard.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "blockyard.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "blockyard.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "blockyard.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "blockyard.image" -}}
{{- $gpu := false -}}
{{- range .Values.models }}{{ if eq .device "cuda" }}{{ $gpu = true }}{{ end }}{{ end -}}
{{- $tag := default (ternary .Chart.AppVersion (printf "%s-cpu" .Chart.AppVersion) $gpu) .Values.image.tag -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end }}

{{- define "blockyard.claimName" -}}
{{- if eq .Values.modelStorage.type "existingClaim" -}}
{{- .Values.modelStorage.existingClaim -}}
{{- else -}}
{{- printf "%s-models" (include "blockyard.fullname" .) -}}
{{- end -}}
{{- end }}

{{/* What `blockyard model fetch` and the server are asked for. */}}
{{- define "blockyard.modelId" -}}
{{- $id := default .name .id -}}
{{- if .revision -}}{{ printf "%s@%s" $id .revision }}{{- else -}}{{ $id }}{{- end -}}
{{- end }}

{{- define "blockyard.servedName" -}}
{{- default .name .servedName -}}
{{- end }}

{{/* Seconds that a pod may take to end: both waits, and what Serve adds to the drain. */}}
{{- define "blockyard.terminationSeconds" -}}
{{- add .Values.server.preStopSeconds .Values.server.drainSeconds 20 -}}
{{- end }}
