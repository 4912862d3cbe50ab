"""A small config.json for every architecture of mlx-lm: what most have in common, and what some want besides."""

from typing import Any

__all__ = ["configuration"]


def configuration(name: str) -> dict[str, Any]:
    """A config.json: each architecture takes the entries that it knows. Wrapped ones find theirs in ``text_config``."""
    flat = {**SMALL, "model_type": name, **SPECIAL.get(name, {})}
    return {**flat, "text_config": flat}


def each(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


def long_rope(half_size: int) -> dict[str, Any]:
    return {
        "type": "longrope",
        "original_max_position_embeddings": 128,
        **each([1.0] * half_size, "short_factor long_factor"),
        **each(1.0, "short_mscale long_mscale"),
    }


SMALL: dict[str, Any] = {
    **each(96, "vocab_size num_vocab embedding_size vocab_size_per_layer_input"),
    **each(64, "hidden_size hidden_dim model_dim d_model n_embd block_dim dim_model_base"),
    **each(128, "intermediate_size intermediate_size_mlp n_inner ffn_hidden_size ff_intermediate_size mlp_hidden_size"),
    **each(32, "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size"),
    **each(32, "expert_ffn_hidden_size shared_intermediate_size share_expert_dim"),
    **each(4, "num_hidden_layers num_layers n_layer n_layers num_transformer_layers"),
    **each(4, "num_attention_heads num_heads n_head n_heads swa_num_attention_heads num_swa_attention_heads"),
    **each(2, "num_key_value_heads num_kv_heads n_kv_heads swa_num_key_value_heads num_swa_key_value_heads"),
    **each(2, "num_attention_groups num_global_key_value_heads"),
    **each(16, "head_dim v_head_dim swa_head_dim swa_v_head_dim qk_nope_head_dim hidden_size_per_head kv_channels"),
    **each(16, "global_head_dim kv_lora_rank q_lora_rank query_pre_attn_scalar qk_head_dim"),
    **each(8, "qk_rope_head_dim rotary_dim"),
    **each(4, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    **each(2, "num_experts_per_tok num_experts_per_token moe_topk moe_k moe_top_k top_k_experts"),
    **each(1, "n_shared_experts num_shared_experts num_shared_expert moe_num_shared_experts n_group topk_group"),
    **each(1, "num_expert_group first_k_dense_replace moe_layer_freq decoder_sparse_step num_dense_layers"),
    **each(1, "n_groups mamba_n_groups routed_scaling_factor logits_scaling attention_multiplier scale_emb"),
    **each(1, "embedding_multiplier residual_multiplier scale_depth"),
    **each(1e-5, "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon layernorm_epsilon"),
    **each(1e4, "rope_theta swa_rope_theta rotary_emb_base rope_local_theta rope_local_base_freq"),
    **each(256, "max_position_embeddings n_positions n_ctx model_max_length block_size"),
    **each(128, "original_max_position_embeddings"),
    **each(False, "attention_bias mlp_bias use_bias use_qkv_bias mamba_proj_bias conv_bias use_conv_bias"),
    **each(True, "norm_topk_prob tie_word_embeddings use_qk_norm qk_norm"),
    **each(0.5, "partial_rotary_factor rotary_pct"),
    **each(4, "sliding_window sliding_window_size window_size attention_window_size attention_chunk_size index_topk"),
    **each(4, "conv_kernel conv_L_cache conv1d_width linear_conv_kernel_dim short_conv_kernel_size mamba_d_conv"),
    **each(4, "linear_num_value_heads linear_num_key_heads mamba_num_heads mamba_n_heads time_step_rank"),
    **each(16, "mamba_d_state ssm_state_size state_size linear_key_head_dim linear_value_head_dim mamba_d_head"),
    **each(16, "mamba_head_dim index_head_dim hidden_size_per_layer_input"),
    **each(2, "conv_window index_n_heads sliding_window_pattern layer_group_size group_norm_size"),
    **each("sigmoid", "scoring_func score_function moe_router_activation_func"),
    **each([], "mlp_only_layers"),
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
}

WINDOWS = ["sliding_attention", "full_attention"] * 2
ROPE = {"rope_theta": 1e4, "rope_type": "default"}
YARN = {
    **each("yarn", "type rope_type"),
    **each(1.0, "mscale mscale_all_dim"),
    "factor": 2.0,
    "original_max_position_embeddings": 128,
    "rope_theta": 1e4,
    "llama_4_scaling_beta": 0.1,
}
DELTA = {
    "kda_layers": [1, 2, 3],
    "full_attn_layers": [4],
    **each(4, "num_heads short_conv_kernel_size"),
    "head_dim": 16,
}
SHARING = {"num_kv_shared_layers": 2, "layer_types": WINDOWS}
LFM2 = {
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "block_ff_dim": 128,
    "use_expert_bias": True,
    "full_attn_idxs": [1, 3],
}
LONGCAT = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "zero_expert_num": 2,
    **each(True, "mla_scale_q_lora mla_scale_kv_lora"),
    "num_layers": 2,
}

SPECIAL: dict[str, dict[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 2},
    "afmoe": {"layer_types": WINDOWS},
    "apertus": {"post_norm": False},
    "baichuan_m1": {"sliding_window_layers": [1], "tie_word_embeddings": False},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
    },
    "deepseek_v2": {"rope_scaling": YARN, "topk_method": "greedy"},
    "deepseek_v41": {
        "scoring_func": "sqrtsoftplus",
        "head_dim": 32,
        "o_groups": 2,
        "o_lora_rank": 16,
        "compress_ratios": (0, 2, 2, 0),
        "kv_source_layer_ids": (1,),
        "index_source_layer_ids": (1,),
        "index_topk": 2,
    },
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LLLG"},
    "exaone_moe": {"layer_types": WINDOWS, "is_moe_layer": [False, True] * 2},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gear": {
        "layer_types": ["sliding_attention", "conv_mixer", "full_attention", "conv_mixer"],
        "attn_logit_softcapping": 50.0,
    },
    "gemma3n": {
        **SHARING,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
        "altup_num_inputs": 2,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 8,
    },
    "gemma4": SHARING,
    "gemma4_text": SHARING,
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"rope_parameters": ROPE},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "hunyuan": {
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
    },
    "jamba": {
        **each(1, "attn_layer_offset expert_layer_offset"),
        **each(2, "attn_layer_period expert_layer_period mamba_expand"),
    },
    "kimi_k3": {"hidden_act": "situ", "linear_attn_config": DELTA},
    "kimi_linear": {"linear_attn_config": DELTA},
    "lfm2": LFM2,
    "lfm2-vl": LFM2,
    "lfm2_moe": LFM2,
    "llama4": {"interleave_moe_layer_step": 2, "rope_scaling": None, "num_experts_per_tok": 1},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": LONGCAT,
    "mamba2": {"time_step_limit": (0.0, float("inf"))},
    "mellum": {"layer_types": WINDOWS, "rope_parameters": dict.fromkeys(WINDOWS, ROPE)},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "minicpm3": {"rope_scaling": long_rope(4)},
    "minimax_m3_vl": {"moe_layer_freq": [0, 1, 1, 1], "index_block_size": 4, "index_topk_blocks": 2},
    "ministral3": {"rope_parameters": YARN},
    "mistral4": {"rope_parameters": YARN},
    "muse_spark": {
        "post_norm_eps": 1e-8,
        "rope_parameters": ROPE,
        "layer_rope_theta": [1e4, 0.0] * 2,
        "layer_types": WINDOWS,
        "final_logit_softcapping": 20.0,
        "output_multiplier": 0.2,
        "moe_hidden_size": 64,
        "num_shared_experts": 0,
    },
    "nanbeige": {"num_loops": 2},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"replace_with_linear": True}},
        ]
    },
    "nemotron_h": {"hybrid_override_pattern": ["-", "M", "E", "*"]},
    "olmo_hybrid": {"linear_allow_neg_eigval": True},
    "openelm": {
        "num_query_heads": [4] * 4,
        "num_kv_heads": [2] * 4,
        "ffn_multipliers": [1.0] * 4,
        "ffn_dim_divisor": 8,
    },
    # It writes to the logits of tokens up to 100351, whatever the size of its vocabulary.
    "phi3small": {
        "vocab_size": 100352,
        "dense_attention_every_n_layers": 2,
        "gegelu_limit": 20.0,
        "blocksparse_block_size": 32,
    },
    "phimoe": {"rope_scaling": long_rope(8)},
    "plamo": {"n_shared_head": 2},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "hidden_size": 128,
        "modules": [
            {"path": "model.layers.3.self_attn.q_proj", "dtype": "float16", "embedding": False, "block": 0},
        ],
    },
    "recurrent_gemma": {"logits_soft_cap": 30.0, "block_types": ["recurrent", "attention"] * 2},
    "rwkv7": each(8, "a_low_rank_dim v_low_rank_dim gate_low_rank_dim decay_low_rank_dim"),
    "spark2_5": {"hidden_act": "gelu", "rope_parameters": dict.fromkeys(WINDOWS, ROPE)},
}
