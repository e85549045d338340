// What the endpoint picker of the Gateway API's inference extension, which llm-d's is made of, makes of a configuration
// and of the metrics of servers. Its own code does all of it: the loader of configurations, the source that fetches
// /metrics, the extractor that reads them.
//
//	endpoint-picker <configuration> <engine-type label> <host:port>...
//
// Prints one line of JSON for each server.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/config/loader"
	epp "sigs.k8s.io/gateway-api-inference-extension/pkg/epp/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	extractor "sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/datalayer/extractor/metrics"
	source "sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/datalayer/source/metrics"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/flowcontrol/fairness"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/flowcontrol/ordering"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/flowcontrol/usagelimits"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/requestcontrol/dataproducer/approximateprefix"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/requesthandling/parsers/openai"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/picker"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/profile"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/kvcacheutilization"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/prefix"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/queuedepth"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/runningrequests"
)

// The picker registers these and others in a function that nobody else can call.
func register() {
	plugin.Register(approximateprefix.ApproxPrefixCachePluginType, approximateprefix.ApproxPrefixCacheFactory)
	plugin.Register(extractor.MetricsExtractorType, extractor.CoreMetricsExtractorFactory)
	plugin.Register(fairness.GlobalStrictFairnessPolicyType, fairness.GlobalStrictFairnessPolicyFactory)
	plugin.Register(kvcacheutilization.KvCacheUtilizationScorerType, kvcacheutilization.KvCacheUtilizationScorerFactory)
	plugin.Register(openai.OpenAIParserType, openai.OpenAIParserPluginFactory)
	plugin.Register(ordering.FCFSOrderingPolicyType, ordering.FCFSOrderingPolicyFactory)
	plugin.Register(picker.MaxScorePickerType, picker.MaxScorePickerFactory)
	plugin.Register(prefix.PrefixCacheScorerPluginType, prefix.PrefixCachePluginFactory)
	plugin.Register(profile.SingleProfileHandlerType, profile.SingleProfileHandlerFactory)
	plugin.Register(queuedepth.QueueScorerType, queuedepth.QueueScorerFactory)
	plugin.Register(runningrequests.RunningRequestsSizeScorerType, runningrequests.RunningRequestsSizeScorerFactory)
	plugin.Register(source.MetricsDataSourceType, source.MetricsDataSourceFactory)
	plugin.Register(usagelimits.StaticUsageLimitPolicyType, usagelimits.StaticPolicyFactory)
	plugin.Register(utilization.UtilizationDetectorType, utilization.UtilizationDetectorFactory)
}

func run(file, engine string, servers []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	register()
	logger := logr.Discard()
	raw, _, err := loader.LoadRawConfig(text, logger)
	if err != nil {
		return err
	}
	ctx := context.Background()
	handle := plugin.NewEppHandle(ctx, func() []types.NamespacedName { return nil })
	config, err := loader.InstantiateAndConfigure(raw, handle, logger)
	if err != nil {
		return err
	}
	for _, server := range servers {
		answer := map[string]any{"server": server}
		if err := read(ctx, config.DataConfig.Sources, engine, server, answer); err != nil {
			answer["error"] = err.Error()
		}
		line, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}

func read(ctx context.Context, sources []epp.DataSourceConfig, engine, server string, answer map[string]any) error {
	endpoint := datalayer.NewEndpoint(&datalayer.EndpointMetadata{
		MetricsHost: server,
		Labels:      map[string]string{extractor.DefaultEngineTypeLabelKey: engine},
	}, nil)
	var faults []error
	for _, each := range sources {
		polled, ok := each.Plugin.(datalayer.PollingDataSource)
		if !ok {
			return fmt.Errorf("%s is not polled", each.Plugin.TypedName())
		}
		data, err := polled.Poll(ctx, endpoint)
		if err != nil {
			return err
		}
		for _, reader := range each.Extractors {
			faults = append(faults, reader.Extract(ctx, data, endpoint))
		}
	}
	metrics := endpoint.GetMetrics()
	answer["waiting"] = metrics.WaitingQueueSize
	answer["running"] = metrics.RunningRequestsSize
	answer["kvUsage"] = metrics.KVCacheUsagePercent
	answer["isFresh"] = !metrics.UpdateTime.IsZero()
	return errors.Join(faults...)
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: endpoint-picker <configuration> <engine-type label> <host:port>...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
