{{/* The name of the release, with the chart's in it. */}}
{{- define "duemq.name" -}}
{{- ternary .Release.Name (printf "%s-duemq" .Release.Name) (contains "duemq" .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* The kinds of process, and where each of them listens. */}}
{{- define "duemq.kinds" -}}
{{- if eq .Values.mode "single" -}}
serve: {name: {{ include "duemq.name" . }}, port: 8787, listen: DUEMQ_LISTEN}
{{- else -}}
node: {name: {{ include "duemq.name" . }}-node, port: 8788, listen: DUEMQ_NODE__LISTEN}
proxy: {name: {{ include "duemq.name" . }}, port: 8787, listen: DUEMQ_LISTEN}
relay: {name: {{ include "duemq.name" . }}-relay, port: 8789, listen: DUEMQ_RELAY__LISTEN}
{{- end -}}
{{- end -}}

{{- define "duemq.selector" -}}
app.kubernetes.io/name: duemq
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .kind }}
{{- end -}}

{{- define "duemq.labels" -}}
{{ include "duemq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Maps as tables of TOML. Values of JSON are values of TOML, too, but for null and objects. */}}
{{- define "duemq.toml" -}}
{{- $path := .path -}}
{{- $bare := "^[A-Za-z0-9_-]+$" -}}
{{- range $key, $value := .table -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ ternary $key (toJson $key) (regexMatch $bare $key) }} = {{ toJson $value }}
{{- end -}}
{{- end -}}
{{- range $key, $value := .table -}}
{{- if kindIs "map" $value }}
{{- $inner := append $path (ternary $key (toJson $key) (regexMatch $bare $key)) }}

[{{ join "." $inner }}]
{{- include "duemq.toml" (dict "table" $value "path" $inner) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "duemq.secret" -}}
{{- range $setting, $value := .Values.secrets }}
DUEMQ_{{ $setting | replace "." "__" | upper }}: {{ $value | quote }}
{{- end -}}
{{- end -}}

{{/* How long a pod may take to end: duemq serves on, then ends requests, then commits and closes its files. */}}
{{- define "duemq.grace" -}}
{{- $http := .root.Values.config.http | default dict -}}
{{- add (dig "drainSeconds" 0 .own) (dig "shutdown_grace_s" 10 $http | ceil) 30 -}}
{{- end -}}

{{/* What all pods have: `root`, `kind`, `process` (a value of duemq.kinds), `own` (the values of the kind). */}}
{{- define "duemq.pod" -}}
{{- $values := .root.Values -}}
{{- $keeps := hasKey .own "storage" -}}
{{- $health := ternary (list "duemq" "health" "--listen" (printf "0.0.0.0:%v" .process.port)) (list "duemq" "health") (eq .kind "relay") -}}
metadata:
  labels: {{- include "duemq.selector" . | nindent 4 }}
  annotations:
    checksum/settings: {{ printf "%s%s" (toJson $values.config) (toJson $values.secrets) | sha256sum }} # a change restarts the pods
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "duemq.grace" . }}
  securityContext: {{- toYaml $values.podSecurityContext | nindent 4 }}
  {{- with .own.pod }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  topologySpreadConstraints:
    {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - topologyKey: {{ $key }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "duemq.selector" $ | nindent 10 }}
    {{- end }}
  containers:
    - name: duemq
      image: {{ printf "%s:%s" $values.image.repository ($values.image.tag | default .root.Chart.AppVersion) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [{{ .kind }}]
      env:
        - {name: DUEMQ_CONFIG, value: /etc/duemq/duemq.toml}
        - {name: DUEMQ_STRICT_ENV, value: "1"}
        - {name: {{ .process.listen }}, value: "0.0.0.0:{{ .process.port }}"}
        {{- if $keeps }}
        - {name: DUEMQ_DATA, value: /data/duemq} # the root of a volume may have a lost+found, which duemq refuses
        {{- end }}
        {{- if hasKey .own "drainSeconds" }}
        - {name: DUEMQ_HTTP__DRAIN_S, value: {{ .own.drainSeconds | quote }}}
        {{- end }}
        {{- if eq .kind "node" }}
        - {name: DUEMQ_NODE__NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: DUEMQ_NODE__ADVERTISE, value: "$(DUEMQ_NODE__NAME).{{ .process.name }}.{{ .root.Release.Namespace }}.svc"}
        - {name: DUEMQ_NODE__LINK_PORT, value: "8790"}
        {{- end }}
        {{- with .own.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if or $values.existingSecret $values.secrets }}
      envFrom:
        - secretRef: {name: {{ $values.existingSecret | default (include "duemq.name" .root) }}}
      {{- end }}
      ports:
        - {name: http, containerPort: {{ .process.port }}}
        {{- if eq .kind "node" }}
        - {name: link, containerPort: 8790}
        {{- end }}
      startupProbe: # brokers that are away hold up the start
        exec: {command: {{ toJson (append $health "--live") }}}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 60
      readinessProbe:
        exec: {command: {{ toJson $health }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        exec: {command: {{ toJson (append $health "--live") }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      resources: {{- toYaml .own.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/duemq, readOnly: true}
        {{- if $keeps }}
        - {name: data, mountPath: /data}
        {{- end }}
        {{- with $values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "duemq.name" .root }}}
    {{- with $values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
