"""All fields of the workload kinds, made by `python -m tests.controlplane.render_api_fields`; not written by hand.

A line is a type with its fields; `field:Type` has fields itself, and what is in another is not known.

Source: github.com/ai-dynamo/grove@v0.1.0-alpha.12-rc1, github.com/kubeflow/mpi-operator@v0.8.0, github.com/kubeflow/trainer/v2@v2.3.0, github.com/kubeflow/training-operator@v1.9.3, github.com/ray-project/kuberay/ray-operator@v1.6.2, k8s.io/kubernetes@v1.37.2, sigs.k8s.io/jobset@v0.12.0, sigs.k8s.io/lws@v0.9.0.
"""

from typing import Final

VERSIONS: Final = (
    "github.com/ai-dynamo/grove@v0.1.0-alpha.12-rc1",
    "github.com/kubeflow/mpi-operator@v0.8.0",
    "github.com/kubeflow/trainer/v2@v2.3.0",
    "github.com/kubeflow/training-operator@v1.9.3",
    "github.com/ray-project/kuberay/ray-operator@v1.6.2",
    "k8s.io/kubernetes@v1.37.2",
    "sigs.k8s.io/jobset@v0.12.0",
    "sigs.k8s.io/lws@v0.9.0",
)
TABLE: Final = """
AWSElasticBlockStoreVolumeSource = fsType partition readOnly volumeID
Affinity = nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity
AppArmorProfile = localhostProfile type
AzureDiskVolumeSource = cachingMode diskName diskURI fsType kind readOnly
AzureFileVolumeSource = readOnly secretName shareName
CSIVolumeSource = driver fsType nodePublishSecretRef:LocalObjectReference readOnly volumeAttributes
Capabilities = add drop
CephFSVolumeSource = monitors path readOnly secretFile secretRef:LocalObjectReference user
CinderVolumeSource = fsType readOnly secretRef:LocalObjectReference volumeID
ClusterTrainingRuntime = apiVersion kind metadata:ObjectMeta spec:TrainingRuntime.spec
ClusterTrustBundleProjection = labelSelector:LabelSelector name optional path signerName user
ConfigMapEnvSource = name optional
ConfigMapKeySelector = key name optional
ConfigMapProjection = items:KeyToPath name optional
ConfigMapVolumeSource = defaultMode defaultUser items:KeyToPath name optional
Container = args command env:EnvVar envFrom:EnvFromSource image imagePullPolicy lifecycle:Lifecycle
  livenessProbe:Probe name ports:ContainerPort readinessProbe:Probe resizePolicy:ContainerResizePolicy
  resources:ResourceRequirements restartPolicy restartPolicyRules:ContainerRestartRule securityContext:SecurityContext
  startupProbe:Probe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices:VolumeDevice
  volumeMounts:VolumeMount workingDir
ContainerExtendedResourceRequest = containerName requestName resourceName
ContainerPort = containerPort hostIP hostPort name protocol
ContainerResizePolicy = resourceName restartPolicy
ContainerRestartRule = action exitCodes:ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes = operator values
ContainerState = running:ContainerStateRunning terminated:ContainerStateTerminated waiting:ContainerStateWaiting
ContainerStateRunning = startedAt
ContainerStateTerminated = containerID exitCode finishedAt message reason signal startedAt
ContainerStateWaiting = message reason
ContainerUser = linux:LinuxContainerUser
CronJob = apiVersion kind metadata:ObjectMeta spec:CronJobSpec status
CronJobSpec = concurrencyPolicy failedJobsHistoryLimit jobTemplate:JobTemplateSpec schedule startingDeadlineSeconds
  successfulJobsHistoryLimit suspend timeZone
DisaggregatedSet = apiVersion kind metadata:ObjectMeta spec:DisaggregatedSet.spec status
DisaggregatedSet.spec = roles:DisaggregatedSet.spec.roles
DisaggregatedSet.spec.roles = metadata:ObjectMeta name spec:LeaderWorkerSet.spec
DownwardAPIProjection = items:DownwardAPIVolumeFile
DownwardAPIVolumeFile = fieldRef:ObjectFieldSelector mode path resourceFieldRef:ResourceFieldSelector user
DownwardAPIVolumeSource = defaultMode defaultUser items:DownwardAPIVolumeFile
EmptyDirVolumeSource = medium mode sizeLimit
EnvFromSource = configMapRef:ConfigMapEnvSource prefix secretRef:SecretEnvSource
EnvVar = name value valueFrom:EnvVarSource
EnvVarSource = configMapKeyRef:ConfigMapKeySelector fieldRef:ObjectFieldSelector fileKeyRef:FileKeySelector
  resourceFieldRef:ResourceFieldSelector secretKeyRef:SecretKeySelector
EphemeralContainer = args command env:EnvVar envFrom:EnvFromSource image imagePullPolicy lifecycle:Lifecycle
  livenessProbe:Probe name ports:ContainerPort readinessProbe:Probe resizePolicy:ContainerResizePolicy
  resources:ResourceRequirements restartPolicy restartPolicyRules:ContainerRestartRule securityContext:SecurityContext
  startupProbe:Probe stdin stdinOnce targetContainerName terminationMessagePath terminationMessagePolicy tty
  volumeDevices:VolumeDevice volumeMounts:VolumeMount workingDir
EphemeralVolumeSource = volumeClaimTemplate:PersistentVolumeClaimTemplate
EvictionResponder = name priority
ExecAction = command
FCVolumeSource = fsType lun readOnly targetWWNs wwids
FileKeySelector = key optional path volumeName
FlexVolumeSource = driver fsType options readOnly secretRef:LocalObjectReference
FlockerVolumeSource = datasetName datasetUUID
GCEPersistentDiskVolumeSource = fsType partition pdName readOnly
GRPCAction = mode port service
GitRepoVolumeSource = directory repository revision
GlusterfsVolumeSource = endpoints path readOnly
HTTPGetAction = host httpHeaders:HTTPHeader path port protocol scheme
HTTPHeader = name value
HostAlias = hostnames ip
HostIP = ip
HostPathVolumeSource = path type
ISCSIVolumeSource = chapAuthDiscovery chapAuthSession fsType initiatorName iqn iscsiInterface lun portals readOnly
  secretRef:LocalObjectReference targetPortal
ImageVolumeSource = pullPolicy reference
JAXJob = apiVersion kind metadata:ObjectMeta spec:JAXJob.spec status
JAXJob.spec = jaxReplicaSpecs:JAXJob.spec.jaxReplicaSpecs runPolicy:PyTorchJob.spec.runPolicy
JAXJob.spec.jaxReplicaSpecs = *:PyTorchJob.spec.pytorchReplicaSpecs.*
Job = apiVersion kind metadata:ObjectMeta spec:JobSpec status
JobCondition = lastProbeTime lastTransitionTime message reason status type
JobSchedulingConfiguration = disruptionMode:WorkloadPodGroupDisruptionMode
  resourceClaims:WorkloadPodGroupResourceClaim schedulingConstraints:WorkloadPodGroupSchedulingConstraints
  schedulingPolicy:WorkloadPodGroupSchedulingPolicy
JobSet = apiVersion kind metadata:ObjectMeta spec:JobSet.spec status
JobSet.spec = coordinator:JobSet.spec.coordinator failurePolicy:JobSet.spec.failurePolicy managedBy
  network:JobSet.spec.network replicatedJobs:JobSet.spec.replicatedJobs startupPolicy:JobSet.spec.startupPolicy
  successPolicy:JobSet.spec.successPolicy suspend ttlSecondsAfterFinished
  volumeClaimPolicies:JobSet.spec.volumeClaimPolicies
JobSet.spec.coordinator = jobIndex podIndex replicatedJob
JobSet.spec.failurePolicy = maxRestarts restartStrategy rules:JobSet.spec.failurePolicy.rules
JobSet.spec.failurePolicy.rules = action name onJobFailureMessagePatterns onJobFailureReasons targetReplicatedJobs
JobSet.spec.network = enableDNSHostnames publishNotReadyAddresses subdomain
JobSet.spec.replicatedJobs = dependsOn:JobSet.spec.replicatedJobs.dependsOn groupName name replicas
  template:JobTemplateSpec
JobSet.spec.replicatedJobs.dependsOn = name status
JobSet.spec.startupPolicy = startupPolicyOrder
JobSet.spec.successPolicy = operator targetReplicatedJobs
JobSet.spec.volumeClaimPolicies = retentionPolicy:JobSet.spec.volumeClaimPolicies.retentionPolicy
  templates:PersistentVolumeClaim
JobSet.spec.volumeClaimPolicies.retentionPolicy = whenDeleted
JobSpec = activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector
  maxFailedIndexes parallelism podFailurePolicy:PodFailurePolicy podReplacementPolicy
  scheduling:JobSchedulingConfiguration selector:LabelSelector successPolicy:SuccessPolicy suspend
  template:PodTemplateSpec ttlSecondsAfterFinished
JobTemplateSpec = metadata:ObjectMeta spec:JobSpec
KeyToPath = key mode path user
LabelSelector = matchExpressions:LabelSelectorRequirement matchLabels
LabelSelectorRequirement = key operator values
LeaderWorkerSet = apiVersion kind metadata:ObjectMeta spec:LeaderWorkerSet.spec status
LeaderWorkerSet.spec = leaderWorkerTemplate:LeaderWorkerSet.spec.leaderWorkerTemplate
  networkConfig:LeaderWorkerSet.spec.networkConfig replicas rolloutStrategy:LeaderWorkerSet.spec.rolloutStrategy
  startupPolicy
LeaderWorkerSet.spec.leaderWorkerTemplate = leaderTemplate:PodTemplateSpec
  persistentVolumeClaimRetentionPolicy:StatefulSetPersistentVolumeClaimRetentionPolicy restartPolicy size
  subGroupPolicy:LeaderWorkerSet.spec.leaderWorkerTemplate.subGroupPolicy volumeClaimTemplates:PersistentVolumeClaim
  workerTemplate:PodTemplateSpec
LeaderWorkerSet.spec.leaderWorkerTemplate.subGroupPolicy = subGroupPolicyType subGroupSize
LeaderWorkerSet.spec.networkConfig = subdomainPolicy
LeaderWorkerSet.spec.rolloutStrategy =
  rollingUpdateConfiguration:LeaderWorkerSet.spec.rolloutStrategy.rollingUpdateConfiguration type
LeaderWorkerSet.spec.rolloutStrategy.rollingUpdateConfiguration = maxSurge maxUnavailable partition
Lifecycle = postStart:LifecycleHandler preStop:LifecycleHandler stopSignal
LifecycleHandler = exec:ExecAction httpGet:HTTPGetAction sleep:SleepAction tcpSocket:TCPSocketAction
LinuxContainerUser = gid supplementalGroups uid
LocalObjectReference = name
MPIJob = apiVersion kind metadata:ObjectMeta spec:MPIJob.spec status
MPIJob.spec = launcherCreationPolicy mpiImplementation mpiReplicaSpecs:MPIJob.spec.mpiReplicaSpecs runLauncherAsWorker
  runPolicy:PyTorchJob.spec.runPolicy slotsPerWorker sshAuthMountPath
MPIJob.spec.mpiReplicaSpecs = *:PyTorchJob.spec.pytorchReplicaSpecs.*
ManagedFieldsEntry = apiVersion fieldsType fieldsV1 manager operation subresource time
NFSVolumeSource = path readOnly server
NodeAffinity = preferredDuringSchedulingIgnoredDuringExecution:PreferredSchedulingTerm
  requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
NodeAllocatableMappedResources = name quantity
NodeAllocatableOverheadResources = name perContainer perPod
NodeSelector = nodeSelectorTerms:NodeSelectorTerm
NodeSelectorRequirement = key operator values
NodeSelectorTerm = matchExpressions:NodeSelectorRequirement matchFields:NodeSelectorRequirement
ObjectFieldSelector = apiVersion fieldPath
ObjectMeta = annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
  generation labels managedFields:ManagedFieldsEntry name namespace ownerReferences:OwnerReference resourceVersion
  selfLink uid
ObjectReference = apiVersion fieldPath kind name namespace resourceVersion uid
OwnerReference = apiVersion blockOwnerDeletion controller kind name uid
PaddleJob = apiVersion kind metadata:ObjectMeta spec:PaddleJob.spec status
PaddleJob.spec = elasticPolicy:PaddleJob.spec.elasticPolicy paddleReplicaSpecs:PaddleJob.spec.paddleReplicaSpecs
  runPolicy:PyTorchJob.spec.runPolicy
PaddleJob.spec.elasticPolicy = maxReplicas maxRestarts metrics minReplicas
PaddleJob.spec.paddleReplicaSpecs = *:PyTorchJob.spec.pytorchReplicaSpecs.*
PersistentVolumeClaim = apiVersion kind metadata:ObjectMeta spec:PersistentVolumeClaimSpec status
PersistentVolumeClaimCondition = lastProbeTime lastTransitionTime message reason status type
PersistentVolumeClaimSpec = accessModes dataSource:TypedLocalObjectReference dataSourceRef:TypedObjectReference
  resources:VolumeResourceRequirements selector:LabelSelector storageClassName volumeAttributesClassName volumeMode
  volumeName
PersistentVolumeClaimTemplate = metadata:ObjectMeta spec:PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource = claimName readOnly
PhotonPersistentDiskVolumeSource = fsType pdID
Pod = apiVersion kind metadata:ObjectMeta spec:PodSpec status
PodAffinity = preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm
  requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm
PodAffinityTerm = labelSelector:LabelSelector matchLabelKeys mismatchLabelKeys namespaceSelector:LabelSelector
  namespaces topologyKey
PodAntiAffinity = preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm
  requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm
PodCertificateProjection = certificateChainPath credentialBundlePath keyPath keyType maxExpirationSeconds signerName
  user userAnnotations
PodCliqueSet = apiVersion kind metadata:ObjectMeta spec:PodCliqueSet.spec status
PodCliqueSet.spec = replicas template:PodCliqueSet.spec.template updateStrategy:RayCluster.spec.upgradeStrategy
PodCliqueSet.spec.template = cliqueStartupType cliques:PodCliqueSet.spec.template.cliques
  headlessServiceConfig:PodCliqueSet.spec.template.headlessServiceConfig
  podCliqueScalingGroups:PodCliqueSet.spec.template.podCliqueScalingGroups priorityClassName
  resourceClaimTemplates:PodCliqueSet.spec.template.resourceClaimTemplates
  resourceSharing:PodCliqueSet.spec.template.cliques.resourceSharing terminationDelay
  topologyConstraint:PodCliqueSet.spec.template.cliques.topologyConstraint
PodCliqueSet.spec.template.cliques = annotations labels name
  resourceSharing:PodCliqueSet.spec.template.cliques.resourceSharing spec:PodCliqueSet.spec.template.cliques.spec
  topologyConstraint:PodCliqueSet.spec.template.cliques.topologyConstraint
PodCliqueSet.spec.template.cliques.resourceSharing = name namespace scope
PodCliqueSet.spec.template.cliques.spec = autoScalingConfig:PaddleJob.spec.elasticPolicy minAvailable podSpec:PodSpec
  replicas roleName startsAfter
PodCliqueSet.spec.template.cliques.topologyConstraint =
  pack:PodCliqueSet.spec.template.cliques.topologyConstraint.pack packDomain topologyName
PodCliqueSet.spec.template.cliques.topologyConstraint.pack = preferred required
PodCliqueSet.spec.template.headlessServiceConfig = publishNotReadyAddresses
PodCliqueSet.spec.template.podCliqueScalingGroups = annotations cliqueNames minAvailable name replicas
  resourceSharing:PodCliqueSet.spec.template.cliques.resourceSharing scaleConfig:PaddleJob.spec.elasticPolicy
  topologyConstraint:PodCliqueSet.spec.template.cliques.topologyConstraint
PodCliqueSet.spec.template.resourceClaimTemplates = name templateSpec
PodCondition = lastProbeTime lastTransitionTime message observedGeneration reason status type
PodDNSConfig = nameservers options:PodDNSConfigOption searches
PodDNSConfigOption = name value
PodFailurePolicy = rules:PodFailurePolicyRule
PodFailurePolicyOnExitCodesRequirement = containerName operator values
PodFailurePolicyOnPodConditionsPattern = status type
PodFailurePolicyRule = action onExitCodes:PodFailurePolicyOnExitCodesRequirement
  onPodConditions:PodFailurePolicyOnPodConditionsPattern
PodGang = apiVersion kind metadata:ObjectMeta spec:PodGang.spec status
PodGang.spec = podgroups:PodGang.spec.podgroups priorityClassName
  reuseReservationRef:PodGang.spec.podgroups.podReferences
  topologyConstraint:PodGang.spec.podgroups.topologyConstraint
  topologyConstraintGroupConfigs:PodGang.spec.topologyConstraintGroupConfigs
PodGang.spec.podgroups = minReplicas name podReferences:PodGang.spec.podgroups.podReferences
  topologyConstraint:PodGang.spec.podgroups.topologyConstraint
PodGang.spec.podgroups.podReferences = name namespace
PodGang.spec.podgroups.topologyConstraint = packConstraint:PodCliqueSet.spec.template.cliques.topologyConstraint.pack
PodGang.spec.topologyConstraintGroupConfigs = name podGroupNames
  topologyConstraint:PodGang.spec.podgroups.topologyConstraint
PodIP = ip
PodOS = name
PodReadinessGate = conditionType
PodResourceClaim = name resourceClaimName resourceClaimTemplateName
PodSchedulingGate = name
PodSchedulingGroup = podGroupName
PodSecurityContext = appArmorProfile:AppArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser
  seLinuxChangePolicy seLinuxOptions:SELinuxOptions seccompProfile:SeccompProfile supplementalGroups
  supplementalGroupsPolicy sysctls:Sysctl windowsOptions:WindowsSecurityContextOptions
PodSpec = activeDeadlineSeconds affinity:Affinity automountServiceAccountToken containers:Container
  dnsConfig:PodDNSConfig dnsPolicy enableServiceLinks ephemeralContainers:EphemeralContainer
  evictionResponders:EvictionResponder hostAliases:HostAlias hostIPC hostNetwork hostPID hostUsers hostname
  hostnameOverride imagePullSecrets:LocalObjectReference initContainers:Container nodeName nodeSelector os:PodOS
  overhead preemptionPolicy priority priorityClassName readinessGates:PodReadinessGate resourceClaims:PodResourceClaim
  resources:ResourceRequirements restartPolicy runtimeClassName schedulerName schedulingGates:PodSchedulingGate
  schedulingGroup:PodSchedulingGroup securityContext:PodSecurityContext serviceAccount serviceAccountName
  setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations:Toleration
  topologySpreadConstraints:TopologySpreadConstraint volumes:Volume
PodTemplateSpec = metadata:ObjectMeta spec:PodSpec
PodVolumeHealth = healthConditions:VolumeHealthCondition lastTransitionTime name
PortworxVolumeSource = fsType readOnly volumeID
PreferredSchedulingTerm = preference:NodeSelectorTerm weight
Probe = exec:ExecAction failureThreshold grpc:GRPCAction httpGet:HTTPGetAction initialDelaySeconds periodSeconds
  successThreshold tcpSocket:TCPSocketAction terminationGracePeriodSeconds timeoutSeconds
ProjectedVolumeSource = defaultMode defaultUser sources:VolumeProjection
PyTorchJob = apiVersion kind metadata:ObjectMeta spec:PyTorchJob.spec status
PyTorchJob.spec = elasticPolicy:PyTorchJob.spec.elasticPolicy nprocPerNode
  pytorchReplicaSpecs:PyTorchJob.spec.pytorchReplicaSpecs runPolicy:PyTorchJob.spec.runPolicy
PyTorchJob.spec.elasticPolicy = maxReplicas maxRestarts metrics minReplicas nProcPerNode rdzvBackend
  rdzvConf:PyTorchJob.spec.elasticPolicy.rdzvConf rdzvHost rdzvId rdzvPort standalone
PyTorchJob.spec.elasticPolicy.rdzvConf = key value
PyTorchJob.spec.pytorchReplicaSpecs = *:PyTorchJob.spec.pytorchReplicaSpecs.*
PyTorchJob.spec.pytorchReplicaSpecs.* = replicas restartPolicy template:PodTemplateSpec
PyTorchJob.spec.runPolicy = activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy
  schedulingPolicy:PyTorchJob.spec.runPolicy.schedulingPolicy suspend ttlSecondsAfterFinished
PyTorchJob.spec.runPolicy.schedulingPolicy = minAvailable minResources priorityClass queue scheduleTimeoutSeconds
QuobyteVolumeSource = group readOnly registry tenant user volume
RBDVolumeSource = fsType image keyring monitors pool readOnly secretRef:LocalObjectReference user
RayCluster = apiVersion kind metadata:ObjectMeta spec:RayCluster.spec status
RayCluster.spec = authOptions:RayCluster.spec.authOptions autoscalerOptions:RayCluster.spec.autoscalerOptions
  enableInTreeAutoscaling gcsFaultToleranceOptions:RayCluster.spec.gcsFaultToleranceOptions
  headGroupSpec:RayCluster.spec.headGroupSpec headServiceAnnotations managedBy rayVersion suspend
  upgradeStrategy:RayCluster.spec.upgradeStrategy workerGroupSpecs:RayCluster.spec.workerGroupSpecs
RayCluster.spec.authOptions = enableK8sTokenAuth mode secretName
RayCluster.spec.autoscalerOptions = env:EnvVar envFrom:EnvFromSource idleTimeoutSeconds image imagePullPolicy
  resources:ResourceRequirements securityContext:SecurityContext upscalingMode version volumeMounts:VolumeMount
RayCluster.spec.gcsFaultToleranceOptions = externalStorageNamespace redisAddress
  redisPassword:RayCluster.spec.gcsFaultToleranceOptions.redisPassword
  redisUsername:RayCluster.spec.gcsFaultToleranceOptions.redisPassword
RayCluster.spec.gcsFaultToleranceOptions.redisPassword = value valueFrom:EnvVarSource
RayCluster.spec.headGroupSpec = enableIngress headService labels rayStartParams resources serviceType
  template:PodTemplateSpec
RayCluster.spec.upgradeStrategy = type
RayCluster.spec.workerGroupSpecs = groupName idleTimeoutSeconds labels maxReplicas minReplicas numOfHosts
  rayStartParams replicas resources scaleStrategy:RayCluster.spec.workerGroupSpecs.scaleStrategy suspend
  template:PodTemplateSpec
RayCluster.spec.workerGroupSpecs.scaleStrategy = workersToDelete
RayCronJob = apiVersion kind metadata:ObjectMeta spec:RayCronJob.spec status
RayCronJob.spec = jobTemplate:RayJob.spec schedule suspend
RayJob = apiVersion kind metadata:ObjectMeta spec:RayJob.spec status
RayJob.spec = activeDeadlineSeconds backoffLimit clusterSelector deletionStrategy:RayJob.spec.deletionStrategy
  entrypoint entrypointNumCpus entrypointNumGpus entrypointResources jobId managedBy metadata
  preRunningDeadlineSeconds rayClusterSpec:RayCluster.spec runtimeEnvYAML shutdownAfterJobFinishes submissionMode
  submitterConfig:RayJob.spec.submitterConfig submitterPodTemplate:PodTemplateSpec suspend ttlSecondsAfterFinished
RayJob.spec.deletionStrategy = deletionRules:RayJob.spec.deletionStrategy.deletionRules
  onFailure:RayJob.spec.deletionStrategy.onFailure onSuccess:RayJob.spec.deletionStrategy.onFailure
RayJob.spec.deletionStrategy.deletionRules = condition:RayJob.spec.deletionStrategy.deletionRules.condition policy
RayJob.spec.deletionStrategy.deletionRules.condition = jobDeploymentStatus jobStatus ttlSeconds
RayJob.spec.deletionStrategy.onFailure = policy
RayJob.spec.submitterConfig = backoffLimit
RayService = apiVersion kind metadata:ObjectMeta spec:RayService.spec status
RayService.spec = deploymentUnhealthySecondThreshold excludeHeadPodFromServeSvc managedBy
  rayClusterConfig:RayCluster.spec rayClusterDeletionDelaySeconds serveConfigV2 serveService
  serviceUnhealthySecondThreshold upgradeStrategy:RayService.spec.upgradeStrategy
RayService.spec.upgradeStrategy = clusterUpgradeOptions:RayService.spec.upgradeStrategy.clusterUpgradeOptions type
RayService.spec.upgradeStrategy.clusterUpgradeOptions = gatewayClassName intervalSeconds maxSurgePercent
  stepSizePercent
ResourceClaim = name request
ResourceFieldSelector = containerName divisor resource
ResourceHealth = health message resourceID
ResourceRequirements = claims:ResourceClaim limits requests
RollingUpdateStatefulSetStrategy = maxUnavailable partition
SELinuxOptions = level role type user
ScaleIOVolumeSource = fsType gateway protectionDomain readOnly secretRef:LocalObjectReference sslEnabled storageMode
  storagePool system volumeName
SeccompProfile = localhostProfile type
SecretEnvSource = name optional
SecretKeySelector = key name optional
SecretProjection = items:KeyToPath name optional
SecretVolumeSource = defaultMode defaultUser items:KeyToPath optional secretName
SecurityContext = allowPrivilegeEscalation appArmorProfile:AppArmorProfile capabilities:Capabilities privileged
  procMount readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seLinuxOptions:SELinuxOptions
  seccompProfile:SeccompProfile windowsOptions:WindowsSecurityContextOptions
ServiceAccountTokenProjection = audience expirationSeconds path user
SleepAction = seconds
StatefulSet = apiVersion kind metadata:ObjectMeta spec:StatefulSetSpec status
StatefulSetCondition = lastTransitionTime message reason status type
StatefulSetOrdinals = start
StatefulSetPersistentVolumeClaimRetentionPolicy = whenDeleted whenScaled
StatefulSetSpec = minReadySeconds ordinals:StatefulSetOrdinals
  persistentVolumeClaimRetentionPolicy:StatefulSetPersistentVolumeClaimRetentionPolicy podManagementPolicy replicas
  revisionHistoryLimit selector:LabelSelector serviceName template:PodTemplateSpec
  updateStrategy:StatefulSetUpdateStrategy volumeClaimTemplates:PersistentVolumeClaim
StatefulSetUpdateStrategy = rollingUpdate:RollingUpdateStatefulSetStrategy type
StorageOSVolumeSource = fsType readOnly secretRef:LocalObjectReference volumeName volumeNamespace
SuccessPolicy = rules:SuccessPolicyRule
SuccessPolicyRule = succeededCount succeededIndexes
Sysctl = name value
TCPSocketAction = host port
TFJob = apiVersion kind metadata:ObjectMeta spec:TFJob.spec status
TFJob.spec = enableDynamicWorker runPolicy:PyTorchJob.spec.runPolicy successPolicy
  tfReplicaSpecs:TFJob.spec.tfReplicaSpecs
TFJob.spec.tfReplicaSpecs = *:PyTorchJob.spec.pytorchReplicaSpecs.*
Toleration = effect key operator tolerationSeconds value
TopologyConstraint = key
TopologySpreadConstraint = labelSelector:LabelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy
  nodeTaintsPolicy topologyKey whenUnsatisfiable
TrainJob = apiVersion kind metadata:ObjectMeta spec:TrainJob.spec status
TrainJob.spec = activeDeadlineSeconds initializer:TrainJob.spec.initializer managedBy
  runtimePatches:TrainJob.spec.runtimePatches runtimeRef:TypedLocalObjectReference suspend
  trainer:TrainJob.spec.trainer
TrainJob.spec.initializer = dataset:TrainJob.spec.initializer.dataset model:TrainJob.spec.initializer.dataset
TrainJob.spec.initializer.dataset = env:EnvVar secretRef:LocalObjectReference storageUri
TrainJob.spec.runtimePatches = manager time trainingRuntimeSpec:TrainJob.spec.runtimePatches.trainingRuntimeSpec
TrainJob.spec.runtimePatches.trainingRuntimeSpec = template:TrainJob.spec.runtimePatches.trainingRuntimeSpec.template
TrainJob.spec.runtimePatches.trainingRuntimeSpec.template = metadata:ObjectMeta
  spec:TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec
TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec =
  replicatedJobs:TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs
TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs = name
  template:TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs.template
TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs.template = metadata:ObjectMeta
  spec:TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs.template.spec
TrainJob.spec.runtimePatches.trainingRuntimeSpec.template.spec.replicatedJobs.template.spec = template:PodTemplateSpec
TrainJob.spec.trainer = args command env:EnvVar image numNodes numProcPerNode resourcesPerNode:ResourceRequirements
TrainingRuntime = apiVersion kind metadata:ObjectMeta spec:TrainingRuntime.spec
TrainingRuntime.spec = mlPolicy:TrainingRuntime.spec.mlPolicy podGroupPolicy:TrainingRuntime.spec.podGroupPolicy
  template:TrainingRuntime.spec.template
TrainingRuntime.spec.mlPolicy = flux:TrainingRuntime.spec.mlPolicy.flux jax mpi:TrainingRuntime.spec.mlPolicy.mpi
  numNodes torch:TrainingRuntime.spec.mlPolicy.torch xgboost
TrainingRuntime.spec.mlPolicy.flux = numProcPerNode
TrainingRuntime.spec.mlPolicy.mpi = mpiImplementation numProcPerNode runLauncherAsNode sshAuthMountPath
TrainingRuntime.spec.mlPolicy.torch = envInjection:TrainingRuntime.spec.mlPolicy.torch.envInjection
TrainingRuntime.spec.mlPolicy.torch.envInjection = targets:TrainingRuntime.spec.mlPolicy.torch.envInjection.targets
TrainingRuntime.spec.mlPolicy.torch.envInjection.targets = containerNames jobName
TrainingRuntime.spec.podGroupPolicy = coscheduling:TrainingRuntime.spec.podGroupPolicy.coscheduling
  volcano:TrainingRuntime.spec.podGroupPolicy.volcano
TrainingRuntime.spec.podGroupPolicy.coscheduling = scheduleTimeoutSeconds
TrainingRuntime.spec.podGroupPolicy.volcano =
  networkTopology:TrainingRuntime.spec.podGroupPolicy.volcano.networkTopology
TrainingRuntime.spec.podGroupPolicy.volcano.networkTopology = highestTierAllowed mode
TrainingRuntime.spec.template = metadata:ObjectMeta spec:JobSet.spec
TypedLocalObjectReference = apiGroup kind name
TypedObjectReference = apiGroup kind name namespace
UncountedTerminatedPods = failed succeeded
Volume = awsElasticBlockStore:AWSElasticBlockStoreVolumeSource azureDisk:AzureDiskVolumeSource
  azureFile:AzureFileVolumeSource cephfs:CephFSVolumeSource cinder:CinderVolumeSource configMap:ConfigMapVolumeSource
  csi:CSIVolumeSource downwardAPI:DownwardAPIVolumeSource emptyDir:EmptyDirVolumeSource
  ephemeral:EphemeralVolumeSource fc:FCVolumeSource flexVolume:FlexVolumeSource flocker:FlockerVolumeSource
  gcePersistentDisk:GCEPersistentDiskVolumeSource gitRepo:GitRepoVolumeSource glusterfs:GlusterfsVolumeSource
  hostPath:HostPathVolumeSource image:ImageVolumeSource iscsi:ISCSIVolumeSource name nfs:NFSVolumeSource
  persistentVolumeClaim:PersistentVolumeClaimVolumeSource photonPersistentDisk:PhotonPersistentDiskVolumeSource
  portworxVolume:PortworxVolumeSource projected:ProjectedVolumeSource quobyte:QuobyteVolumeSource rbd:RBDVolumeSource
  scaleIO:ScaleIOVolumeSource secret:SecretVolumeSource storageos:StorageOSVolumeSource
  vsphereVolume:VsphereVirtualDiskVolumeSource
VolumeDevice = devicePath name
VolumeHealthCondition = message reason status
VolumeMount = bindMountOptions mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr
VolumeProjection = clusterTrustBundle:ClusterTrustBundleProjection configMap:ConfigMapProjection
  downwardAPI:DownwardAPIProjection podCertificate:PodCertificateProjection secret:SecretProjection
  serviceAccountToken:ServiceAccountTokenProjection
VolumeResourceRequirements = limits requests
VsphereVirtualDiskVolumeSource = fsType storagePolicyID storagePolicyName volumePath
WeightedPodAffinityTerm = podAffinityTerm:PodAffinityTerm weight
WindowsSecurityContextOptions = gmsaCredentialSpec gmsaCredentialSpecName hostProcess runAsUserName
WorkloadPodGroupDisruptionMode = all single
WorkloadPodGroupGangSchedulingPolicy = minCount
WorkloadPodGroupResourceClaim = name resourceClaimName resourceClaimTemplateName
WorkloadPodGroupSchedulingConstraints = topology:TopologyConstraint
WorkloadPodGroupSchedulingPolicy = basic gang:WorkloadPodGroupGangSchedulingPolicy
XGBoostJob = apiVersion kind metadata:ObjectMeta spec:XGBoostJob.spec status
XGBoostJob.spec = runPolicy:PyTorchJob.spec.runPolicy xgbReplicaSpecs:XGBoostJob.spec.xgbReplicaSpecs
XGBoostJob.spec.xgbReplicaSpecs = *:PyTorchJob.spec.pytorchReplicaSpecs.*
"""
