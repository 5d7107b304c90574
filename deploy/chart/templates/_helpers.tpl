{{- /* The image by its digest if there is one, else by its tag, which is that of the chart if empty. */ -}}
{{- define "gang-extender.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
